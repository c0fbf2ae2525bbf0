"""Room on the disk: a ballast file that is given up when the disk is full.

LMDB writes new pages even to delete, so a Forget on a full disk needs a little space.
While there is none to spare, writes are refused; they go on by themselves once there is.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from pathlib import Path
from typing import Final

from memsvc.store.writer import disk_full

log = logging.getLogger(__name__)

LEAST_FREE: Final = 8 << 20
"""Free bytes below which writes are refused before they fail."""


class DiskReserve:
    """Holds ``reserve_bytes`` of the disk in a file of zeros."""

    def __init__(self, data_dir: Path, reserve_bytes: int) -> None:
        self._dir = data_dir
        self._path = data_dir / "reserve"
        self._bytes = reserve_bytes
        self._lock = threading.Lock()
        self._full = False

    @property
    def full(self) -> bool:
        """Whether writes are being refused."""
        return self._full

    def guard(self) -> None:
        """Raises ResourceExhausted while the disk is full."""
        if self._full:
            raise disk_full()

    def give_up(self) -> None:
        """The disk is full: frees the reserve, and refuses writes from now on."""
        with self._lock:
            if not self._full:
                log.error("the disk is full: writes are refused until there is room")
            self._full = True
            self._path.unlink(missing_ok=True)

    def check(self) -> None:
        """Takes the reserve again when there is room for it twice over. Call it now and
        then."""
        free = shutil.disk_usage(self._dir).free
        with self._lock:
            if self._path.exists():
                if free < LEAST_FREE and not self._full:
                    log.error("%d bytes free on the disk: writes are refused", free)
                    self._full = True
                elif free >= 2 * LEAST_FREE and self._full:
                    self._full = False
                return
            if free < 2 * (self._bytes + LEAST_FREE):
                if free < LEAST_FREE:
                    self._full = True
                elif not self._bytes:
                    self._full = False
                return
            self._take()
            if self._full:
                log.warning("there is room on the disk again: writes go on")
            self._full = False

    def _take(self) -> None:
        if not self._bytes:
            return
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.posix_fallocate(fd, 0, self._bytes)
        except OSError as error:
            log.warning("the disk reserve could not be taken: %s", error)
            self._path.unlink(missing_ok=True)
        finally:
            os.close(fd)
