"""What the processes of a node meet at: the port, and a folder for socket and limits."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
from pathlib import Path

from memsvc.config import parse_listen
from memsvc.service.listening import ListenError


class SharedPort:
    """Keeps a port for the readers of one node.

    Several sockets on one port are what readers need, and what must not happen by mistake: a
    second server would take half of the connections without an error. So the port is first
    tried in the ordinary way, and then held by a socket that never listens.
    """

    def __init__(self, listen: str) -> None:
        """Raises ListenError."""
        host, port = parse_listen(listen)
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            family, _, _, _, address = found[0]
            if port:
                with _bound(family, address, shared=False) as probe:
                    probe.listen()
            self._socket = _bound(family, address, shared=True)
        except OSError as error:
            raise ListenError(
                f"server.listen: cannot listen on {listen}: the port is taken (by another "
                "memsvc?) or the address is not of this machine"
            ) from error
        self.port: int = self._socket.getsockname()[1]
        self.listen = f"{listen.rpartition(':')[0]}:{self.port}"

    def close(self) -> None:
        """Gives the port up."""
        self._socket.close()


def _bound(family: int, address: object, *, shared: bool) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Connections that ended a moment ago do not count as taking the port.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(address)  # type: ignore[arg-type]  # as getaddrinfo gave it
    except BaseException:
        bound.close()
        raise
    return bound


class MeetingPlace:
    """A folder that only this user may enter. Its name is that of the store, so that what a
    node left that was killed is found and removed by the next; the path of a socket may have
    some 100 bytes, which rules the data directory out."""

    def __init__(self, store_id: str) -> None:
        folder = Path(tempfile.gettempdir()) / f"memsvc-{os.getuid()}-{store_id[:16]}"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            os.mkdir(folder, 0o700)
        except OSError:  # somebody else made it, and may look into it
            folder = Path(tempfile.mkdtemp(prefix="memsvc-"))
        self.folder = folder

    @property
    def socket(self) -> str:
        """Path of the socket of the serving process."""
        return str(self.folder / "node.sock")

    @property
    def limits(self) -> Path:
        """The file of the rate limits."""
        return self.folder / "limits"

    def close(self) -> None:
        """Removes the folder."""
        with contextlib.suppress(OSError):
            shutil.rmtree(self.folder)
