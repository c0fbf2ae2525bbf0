"""Small file systems that really fill up."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def small_disk(folder: Path, kind: str, mib: int) -> Iterator[Path]:
    """A file system of a few MiB: "tmpfs" or "ext4" (on a loop device). Raises OSError when
    this machine does not let us mount one."""
    point = folder / kind
    point.mkdir()
    if kind == "tmpfs":
        options = f"size={mib}m,mode=1777"
        done = _as_root("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(point))
    else:
        image = folder / "disk.img"
        with image.open("wb") as file:
            file.truncate(mib << 20)
        owner = f"root_owner={os.getuid()}:{os.getgid()}"
        done = _run("mkfs.ext4", "-q", "-m", "0", "-E", owner, str(image))
        if not done:
            done = _as_root("mount", "-o", "loop", str(image), str(point))
    if done:
        raise OSError(done)
    try:
        yield point
    finally:
        end = time.monotonic() + 10
        while _as_root("umount", str(point)) and time.monotonic() < end:
            time.sleep(0.2)


def _as_root(*command: str) -> str:
    """What went wrong; empty when nothing did. Uses sudo where it asks for no password."""
    return _run(*command) if os.getuid() == 0 else _run("sudo", "-n", *command)


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError as error:
        return str(error)
    return done.stderr if done.returncode else ""


@contextlib.contextmanager
def stalled(point: Path) -> Iterator[None]:
    """The file system takes no change: whoever writes to it waits, in the kernel and without
    an end, as for a disk that does not answer. For file systems that ``small_disk`` made, but
    not tmpfs."""
    done = _as_root("fsfreeze", "--freeze", str(point))
    if done:
        raise OSError(done)
    try:
        yield
    finally:
        _as_root("fsfreeze", "--unfreeze", str(point))


def fill_disk(point: Path, leave: int = 0) -> Path:
    """Takes the free space of a file system but for ``leave`` bytes; returns the file."""
    filler = point / "filler"
    with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
        while (free := _free(point)) > leave:
            file.write(bytes(min(1 << 20, free - leave)))
    return filler


def _free(point: Path) -> int:
    facts = os.statvfs(point)
    return facts.f_bavail * facts.f_frsize
