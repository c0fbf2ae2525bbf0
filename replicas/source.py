"""The primary, as a follower reaches it."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from memsvc.config import Settings
from memsvc.domain.log import LOG_FORMAT
from memsvc.domain.replication import Standing, Verdict
from memsvc.replication.v1 import replication_service_pb2 as pb
from memsvc.replication.v1 import replication_service_pb2_grpc as pb_grpc
from memsvc.rpc.replication import (
    CHANNEL_OPTIONS,
    TOKEN_KEY,
    read_token,
    standing_message,
    standing_of,
)
from memsvc.version import __version__

PROBE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What the primary said to a probe; ``address`` is where clients reach it, ``min_acks`` how
    many replicas have each write before it is answered there."""

    verdict: Verdict
    reason: str
    standing: Standing
    address: str
    min_acks: int


class Stream:
    """An open Follow: iterate over it, and tell it what is applied."""

    def __init__(self, stub: pb_grpc.ReplicationServiceStub, start: pb.ProbeRequest, token: str):
        self._out: queue.SimpleQueue[pb.FollowRequest | None] = queue.SimpleQueue()
        self._out.put(pb.FollowRequest(start=start))
        self._call = stub.Follow(iter(self._out.get, None), metadata=token_metadata(token))

    def __iter__(self) -> Iterator[pb.FollowResponse]:
        return iter(self._call)

    def applied(self, position: int) -> None:
        """Everything up to a position is on disk here."""
        self._out.put(pb.FollowRequest(applied=position))

    def recalled(self, batch: pb.RecallBatch) -> None:
        """Sends recalls."""
        self._out.put(pb.FollowRequest(recalls=batch))

    def close(self) -> None:
        """Ends the call; the iteration ends with grpc.RpcError."""
        self._out.put(None)
        self._call.cancel()


class Source:
    """Calls to the primary at ``address``. Every call raises grpc.RpcError when it cannot be
    reached. ``listen`` is where the group reaches this node, ``fence`` the least epoch of a
    primary that it follows."""

    def __init__(
        self, settings: Settings, address: str, node_id: str, *, listen: str = "", fence: int = 0
    ) -> None:
        self.address = address
        self._settings = settings
        self._node_id = node_id
        self._listen = listen
        self._fence = fence
        self._token = read_token(settings.replication.token_file)
        self._open: grpc.Channel | None = None

    @contextmanager
    def connected(self) -> Iterator[pb_grpc.ReplicationServiceStub]:
        """A stub over a connection of its own."""
        with open_channel(self.address, self._settings) as channel:
            self._open = channel
            try:
                yield pb_grpc.ReplicationServiceStub(channel)
            finally:
                self._open = None

    def abort(self) -> None:
        """Ends the calls that are under way, from any thread: they raise."""
        if (channel := self._open) is not None:
            channel.close()

    def probe(self, stub: pb_grpc.ReplicationServiceStub, standing: Standing) -> Answer:
        """Asks what to do."""
        answer = stub.Probe(
            self._start(standing), timeout=PROBE_S, metadata=token_metadata(self._token)
        )
        return Answer(
            Verdict(int(answer.verdict)),
            answer.reason,
            standing_of(answer.standing),
            answer.address,
            answer.min_acks,
        )

    def copy(
        self, stub: pb_grpc.ReplicationServiceStub, snapshot: str, have: list[pb.FilePart]
    ) -> Iterator[pb.CopyResponse]:
        """A snapshot, or the rest of one."""
        request = pb.CopyRequest(follower=self._start(Standing()), snapshot=snapshot, have=have)
        pieces: Iterator[pb.CopyResponse] = stub.Copy(request, metadata=token_metadata(self._token))
        return pieces

    def follow(self, stub: pb_grpc.ReplicationServiceStub, standing: Standing) -> Stream:
        """Opens the stream of entries."""
        return Stream(stub, self._start(standing), self._token)

    def _start(self, standing: Standing) -> pb.ProbeRequest:
        return pb.ProbeRequest(
            standing=standing_message(standing),
            log_format=LOG_FORMAT,
            version=__version__,
            node_id=self._node_id,
            listen=self._listen,
            fence=self._fence,
        )


def open_channel(address: str, settings: Settings) -> grpc.Channel:
    """A connection to replication.listen of another node."""
    ca, tls = settings.replication.ca_file, settings.server.tls
    if not ca:
        return grpc.insecure_channel(address, CHANNEL_OPTIONS)
    key = Path(tls.key_file).read_bytes() if tls.key_file else None
    chain = Path(tls.cert_file).read_bytes() if tls.cert_file else None
    credentials = grpc.ssl_channel_credentials(Path(ca).read_bytes(), key, chain)
    return grpc.secure_channel(address, credentials, CHANNEL_OPTIONS)


def token_metadata(token: str) -> tuple[tuple[str, str], ...]:
    """The metadata of a call between nodes."""
    return ((TOKEN_KEY, token),) if token else ()


def told_by(error: grpc.RpcError) -> str:
    """What a failed call says, for people."""
    details = getattr(error, "details", None)
    return str(details()) if callable(details) else str(error)
