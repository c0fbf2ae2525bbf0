"""Keeps the files of cold segments within their share of memory."""

from __future__ import annotations

from typing import Final

from memsvc.segments.residency import ORDER
from memsvc.service.search.registry import Views

LEFT: Final = 7 / 8
"""Share of the budget that is left in memory when something is dropped, so that not every
page read means dropping another."""


class ColdPages:
    """The pages of all cold segments that this process has open. ``budget`` bytes may be in
    memory; ``resident`` were when it was looked last."""

    def __init__(self, views: Views, budget: int) -> None:
        self._views = views
        self.budget = budget
        self.resident = 0

    def tick(self) -> None:
        """Looks what is in memory, and drops what is over the budget: of the partitions that
        were not used for longest first. Takes some milliseconds for a gigabyte of files, and no
        time where there are none."""
        partitions = self._views.cold_files()
        self.resident = sum(file.look() for files in partitions for file in files)
        if self.resident <= self.budget:
            return
        over = self.resident - int(self.budget * LEFT)
        for files in partitions:
            for file in sorted(files, key=lambda f: ORDER.index(f.kind)):
                dropped = file.drop(over)
                over -= dropped
                self.resident -= dropped
                if over <= 0:
                    return
