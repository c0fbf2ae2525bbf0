"""What the processes of a node meet at: the port, and a folder for socket and limits."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Final

from memsvc.config import parse_listen
from memsvc.service.listening import ListenError

SOCKET: Final = "node.sock"
SOCKET_PATH_BYTES: Final = 103
"""Longest path of a socket that every system takes (Linux 107, macOS 103)."""
PORT_S: Final = 5.0
"""Longest wait for a port. Readers of a node that was killed end a moment after it, which is late
on a busy machine; to be refused the port would end the next node for good."""
_AGAIN_S: Final = 0.05
FOLDERS: Final = 100
"""Names that are tried for a folder: others may have them, on purpose or by chance."""


class SharedPort:
    """Keeps a port for the readers of one node.

    Several sockets on one port are what readers need, and what must not happen by mistake: a
    second server would take half of the connections without an error. So the port is first
    taken in the ordinary way, and then held by a socket that never listens, beside which nobody
    else can take it in the ordinary way, whether readers listen just then or not.
    """

    def __init__(self, listen: str, wait_s: float = PORT_S) -> None:
        """Waits so long for a port that is taken. Raises ListenError."""
        host, port = parse_listen(listen)
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            family, _, _, _, address = found[0]
            self._socket = _held(family, address, wait_s) if port else _free(family, address)
        except (OSError, UnicodeError) as error:
            raise ListenError(
                f"server.listen: cannot listen on {listen}: the port is taken (by another "
                "memsvc?) or the address is not of this machine"
            ) from error
        self.port: int = self._socket.getsockname()[1]
        self.listen = f"{listen.rpartition(':')[0]}:{self.port}"

    def close(self) -> None:
        """Gives the port up."""
        self._socket.close()


def _held(family: int, address: object, wait_s: float) -> socket.socket:
    until = time.monotonic() + wait_s
    while True:
        try:
            return _taken(family, address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > until:
                raise
        time.sleep(_AGAIN_S)


def _taken(family: int, address: object) -> socket.socket:
    """The socket that holds an address. Of several processes that call this at once, one gets
    it."""
    with socket.socket(family, socket.SOCK_STREAM) as alone:
        # Connections that ended a moment ago do not count as taking the port.
        alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        alone.bind(address)  # type: ignore[arg-type]  # as getaddrinfo gave it
        # Not the bind but this decides between two that are at it.
        alone.listen()
        # From here on it lets the holder in beside it, and is there until that has the port.
        alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        return _free(family, address)


def _free(family: int, address: object) -> socket.socket:
    holder = socket.socket(family, socket.SOCK_STREAM)
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(address)  # type: ignore[arg-type]  # as getaddrinfo gave it
        # Else a socket of the ordinary kind could be bound beside one that does not listen.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except BaseException:
        holder.close()
        raise
    return holder


class MeetingPlace:
    """A folder that only this user may enter, for the node of a data directory. It is locked as
    long as the node lives: no other takes it for left behind, and what removes old files from
    folders of temporary ones leaves it alone (systemd-tmpfiles asks for the lock). What a node
    that was killed left is used by the next; the path of a socket may have some 100 bytes,
    which rules the data directory out."""

    def __init__(self, data_dir: Path) -> None:
        """Raises ListenError when there is no place for it."""
        # Not the id of the store: copies of it, as replicas and restored snapshots are, have the
        # same, and may be on the same machine.
        digest = blake2b(os.fsencode(data_dir.resolve()), digest_size=8).hexdigest()
        self.folder, self._lock = _folder(f"memsvc-{os.getuid()}-{digest}")

    @property
    def socket(self) -> str:
        """Path of the socket of the serving process."""
        return str(self.folder / SOCKET)

    @property
    def limits(self) -> Path:
        """The file of the rate limits."""
        return self.folder / "limits"

    def close(self) -> None:
        """Removes the folder."""
        with contextlib.suppress(OSError):
            shutil.rmtree(self.folder)
        os.close(self._lock)


def _folder(name: str) -> tuple[Path, int]:
    """A folder that is empty and locked, and the descriptor that locks it."""
    for parent in _parents():
        for number in range(FOLDERS):
            folder = parent / (f"{name}-{number}" if number else name)
            if len(os.fsencode(folder / SOCKET)) > SOCKET_PATH_BYTES:
                break
            try:
                lock = _locked(folder)
            except OSError:  # nothing can be made there, whatever its name
                break
            if lock is not None:
                return folder, lock
    raise ListenError(
        "server.readers: no place for the socket by which readers reach the serving process: it "
        f"needs a folder for temporary files that can be written and has a path of fewer than "
        f"{SOCKET_PATH_BYTES - len(name) - len(SOCKET) - 2} bytes; name one in TMPDIR, or set "
        "server.readers to 0"
    )


def _parents() -> Iterator[Path]:
    with contextlib.suppress(OSError):  # there is none that can be written
        yield Path(tempfile.gettempdir())
    yield from (Path("/tmp"), Path("/var/tmp"))


def _locked(folder: Path) -> int | None:
    """The descriptor that locks a folder, empty and made if it is not there; None when it is
    somebody else's."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = os.fstat(fd)
        mine = found.st_uid == os.getuid() and not found.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
        # Whoever had it may have removed it since.
        if mine and os.path.samestat(found, os.stat(folder, follow_symlinks=False)):
            for left in os.listdir(fd):
                os.unlink(left, dir_fd=fd)
            return fd
    except OSError:
        pass
    os.close(fd)
    return None
