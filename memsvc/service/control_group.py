"""What the control group of this process lets it have: of a container, or of a unit of systemd.

Linux, version 2. A group has no more than those above it, so the tightest limit on the way up
counts. In a container the way usually ends at its own group, which looks like the root.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

_GROUPS: Final = "sys/fs/cgroup"


def memory_limit_bytes(root: Path = Path("/")) -> int:
    """Memory that the control group or, without a limit there, the machine has.

    Mapped segment files are no fixed cost: they are fast while they fit in here, and slow
    once they do not. 0 when it cannot be told.
    """
    found = []
    with contextlib.suppress(OSError, IndexError, ValueError):
        total = (root / "proc/meminfo").read_text().split("MemTotal:")[1].split()[0]
        found.append(int(total) * 1_024)
    for text in _each("memory.max", root):
        with contextlib.suppress(ValueError):  # "max" is no number: no limit here
            found.append(int(text))
    return min(found, default=0)


def core_limit(root: Path = Path("/")) -> float:
    """Cores' worth of time that the control group may use, as in 1.5; infinite without a limit.
    Affinity does not tell it: a process with half a core still sees all of them."""
    found = []
    for text in _each("cpu.max", root):
        with contextlib.suppress(ValueError, ZeroDivisionError):
            time, period = text.split()
            found.append(int(time) / int(period))
    return min(found, default=float("inf"))


def _each(name: str, root: Path) -> Iterator[str]:
    """What a file says in the own group and in each above it, where there is one."""
    own = _own(root)
    for group in (own, *own.parents):
        with contextlib.suppress(OSError):
            yield (root / _GROUPS / group).joinpath(name).read_text()


def _own(root: Path) -> PurePosixPath:
    """The group of this process, below the folder of all groups."""
    top = PurePosixPath()
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                own = PurePosixPath(line.removeprefix("0::/"))
                # Of a group that this process cannot see, which is told as /../name.
                return top if ".." in own.parts else own
    return top
