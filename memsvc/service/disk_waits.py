"""Telling a disk that has stalled from a thread that hangs for another reason."""

from __future__ import annotations

from typing import Final

STALLED_S: Final = 2.0
"""Time in which no change was carried out, though one is under way, after which the disk counts
as stalled. The alert of slow writes is at 0.8 s."""


def waits_for_disk(native_id: int | None) -> bool:
    """Whether a thread of this process is in a wait that nothing interrupts (state D), as for a
    disk that does not answer. False where the system does not tell."""
    try:
        with open(f"/proc/self/task/{native_id}/stat", "rb") as file:
            told = file.read()
    except OSError:
        return False
    # The name before it may have spaces and brackets of its own.
    return told[told.rindex(b")") + 2 :].startswith(b"D")
