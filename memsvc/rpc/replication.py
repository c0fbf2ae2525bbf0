"""The replication service of a primary: gRPC in front of a Feed."""

from __future__ import annotations

import hmac
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn, cast

import grpc

from memsvc.config import Settings
from memsvc.domain.errors import FailedPrecondition
from memsvc.domain.log import LOG_FORMAT
from memsvc.domain.replication import Standing, Verdict, Window
from memsvc.replication.v1 import replication_service_pb2 as pb
from memsvc.replication.v1 import replication_service_pb2_grpc as pb_grpc
from memsvc.rpc.incidents import Incidents
from memsvc.rpc.tls import server_credentials
from memsvc.service import allocator
from memsvc.service.acks import Following
from memsvc.service.bootstraps import Bootstrap, Bootstraps
from memsvc.service.feed import Feed
from memsvc.service.listening import ListenError, TlsFiles, tls_of
from memsvc.service.recalls import Recalls
from memsvc.store import codec
from memsvc.version import __version__

_log = logging.getLogger(__name__)

TOKEN_KEY: Final = "x-memsvc-replication-token"
MAX_FOLLOWERS: Final = 16
"""Streams at once; each holds two threads."""
MESSAGE_BYTES: Final = allocator.MAPPED_BYTES // 2
"""Payload bytes in one message, unless a single entry has more. Blocks that are mapped one by one
would cost four times the processor time: 10 s for 1 GB, sender and receiver together."""
WINDOW_BYTES: Final = 8 << 20
"""Bytes on their way to one follower that it has not acknowledged."""
MAX_MESSAGE_BYTES: Final = 128 << 20
"""A single entry: one Write of server.max_message_bytes."""
SIGN_OF_LIFE_S: Final = 0.2
CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.so_reuseport", 0),
)


def standing_message(standing: Standing) -> pb.Standing:
    """Where a log stands, as it travels."""
    return pb.Standing(
        store_id=standing.store_id,
        epoch=standing.epoch,
        position=standing.position,
        digest=standing.digest,
    )


def standing_of(message: pb.Standing) -> Standing:
    """The reverse."""
    return Standing(message.store_id, message.epoch, message.position, message.digest)


class ReplicationServicer(pb_grpc.ReplicationServiceServicer):
    """memsvc.replication.v1.ReplicationService over a Feed."""

    def __init__(
        self, feed: Feed, bootstraps: Bootstraps, options: ReplicationOptions, door: Doorkeeper
    ) -> None:
        self._feed = feed
        self._bootstraps = bootstraps
        self._door = door
        self._address = options.address
        self._pace = options.copy_bytes_per_s
        self.stopping = threading.Event()

    def Probe(self, request: pb.ProbeRequest, context: grpc.ServicerContext) -> pb.ProbeResponse:
        """See the proto."""
        self._door.admit(context)
        verdict, reason, mine = self._judge(request)
        return pb.ProbeResponse(
            verdict=cast("pb.Verdict.ValueType", int(verdict)),
            standing=standing_message(mine),
            reason=reason,
            log_format=LOG_FORMAT,
            version=__version__,
            address=self._address,
            min_acks=self._feed.acks.settings.wanted,
        )

    def _judge(self, follower: pb.ProbeRequest) -> tuple[Verdict, str, Standing]:
        verdict, reason, mine = self._feed.judge(
            standing_of(follower.standing), follower.log_format
        )
        if not self._feed.leads or mine.epoch < follower.fence:
            # One of an epoch before the fence is none any more, it only does not know yet.
            return Verdict.NOT_PRIMARY, "this node is not the primary", mine
        return verdict, reason, mine

    def Copy(
        self, request: pb.CopyRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.CopyResponse]:
        """See the proto."""
        self._door.admit(context)
        follower = request.follower
        if not self._feed.leads:
            _abort(context, grpc.StatusCode.FAILED_PRECONDITION, "this node is not the primary")
        needed = self._feed.log_format
        if follower.log_format < needed:
            _abort(context, grpc.StatusCode.FAILED_PRECONDITION, f"log format {needed}")
        have = {part.path: part.bytes for part in request.have}
        try:
            with self._bootstraps.use(request.snapshot, self._feed.clock()) as found:
                if found.name != request.snapshot:
                    have = {}
                _log.info("%s copies snapshot %s", follower.node_id, found.name)
                yield pb.CopyResponse(snapshot=found.name)
                yield from self._pieces(found, have)
        except OSError as error:
            _abort(context, grpc.StatusCode.UNAVAILABLE, f"no snapshot: {error.strerror or error}")

    def _pieces(self, found: Bootstrap, have: dict[str, int]) -> Iterator[pb.CopyResponse]:
        began, sent = time.monotonic(), 0
        for piece in found.pieces(have, MESSAGE_BYTES, self.stopping.is_set):
            yield pb.CopyResponse(path=piece.path, offset=piece.offset, data=piece.data)
            sent += len(piece.data)
            if self._pace:
                time.sleep(max(0.0, sent / self._pace - (time.monotonic() - began)))
        if found.manifest is not None:
            yield pb.CopyResponse(manifest=found.manifest.to_json().encode())

    def Follow(
        self, request_iterator: Iterator[pb.FollowRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.FollowResponse]:
        """See the proto."""
        self._door.admit(context)
        first = next(request_iterator, None)
        if first is None or not first.HasField("start"):
            _abort(context, grpc.StatusCode.INVALID_ARGUMENT, "the first message is not a start")
        start = first.start
        standing = standing_of(start.standing)
        verdict, reason, _ = self._judge(start)
        if verdict is not Verdict.FOLLOW:
            _abort(context, grpc.StatusCode.FAILED_PRECONDITION, f"{verdict.name}: {reason}")
        following = self._feed.acks.enter(start.node_id, standing.position, start.listen)
        _log.info(
            "%s (memsvc %s) follows from position %d",
            start.node_id,
            start.version,
            standing.position,
        )
        stream = _Stream(following, Window(WINDOW_BYTES), self._feed)
        reader = threading.Thread(
            target=stream.acknowledge, args=(request_iterator,), name="memsvc-acks", daemon=True
        )
        reader.start()
        try:
            yield from self._records(standing.position, stream, context)
        finally:
            stream.end()
            self._feed.acks.leave(following)
            _log.info("%s follows no longer, at position %d", start.node_id, following.applied)

    def _records(
        self, sent: int, stream: _Stream, context: grpc.ServicerContext
    ) -> Iterator[pb.FollowResponse]:
        feed = self._feed

        def ended() -> bool:
            gone = stream.ended or self.stopping.is_set() or not context.is_active()
            return gone or not feed.leads

        while not ended():
            message = pb.FollowResponse()
            if stream.wait_for_room(SIGN_OF_LIFE_S) and feed.wait(sent, SIGN_OF_LIFE_S, ended):
                found = feed.records(sent, MESSAGE_BYTES)
                message.records.extend(map(codec.encode_record, found))
                sent = found[-1].entry.position
                stream.sent(sent, sum(record.size for record in found))
            message.position, message.time = feed.position, feed.clock()
            message.recalls_taken = stream.recalls_taken
            yield message


class Doorkeeper:
    """Lets nodes in that have the token between the nodes ("" = none is asked for).
    ``refused(host)`` is told of those that have not."""

    def __init__(self, token: str, refused: Callable[[str], None]) -> None:
        self._token = token
        self._refused = refused

    def admit(self, context: grpc.ServicerContext) -> None:
        """Ends the call unless it has the token."""
        if not self._token:
            return
        given = dict(context.invocation_metadata()).get(TOKEN_KEY, "")
        if not isinstance(given, str) or not hmac.compare_digest(given, self._token):
            # ipv4:10.0.0.3:48722, ipv6:[::1]:48722; the port tells nobody anything.
            self._refused(context.peer().partition(":")[2].rpartition(":")[0])
            _abort(
                context,
                grpc.StatusCode.UNAUTHENTICATED,
                "replication.token_file has to hold the same token on all nodes of the group",
            )


def _abort(context: grpc.ServicerContext, code: grpc.StatusCode, text: str) -> NoReturn:
    context.abort(code, text)
    raise AssertionError  # abort has raised


def recalls_of(batch: pb.RecallBatch, node_id: str) -> Recalls:
    """A batch that a node has counted; taken once, however often it comes."""
    ids = [batch.ids[at : at + 16] for at in range(0, len(batch.ids), 16)]
    counts = dict(zip(ids, batch.counts, strict=False))
    return Recalls(batch.tenant, batch.agent, counts, f"{node_id}:{batch.sequence}")


class _Stream:
    """One open stream: what is on its way, told by two threads."""

    def __init__(self, following: Following, window: Window, feed: Feed) -> None:
        self._following = following
        self._window = window
        self._feed = feed
        self.recalls_taken = 0
        self._changed = threading.Condition()
        self.ended = False

    def acknowledge(self, requests: Iterator[pb.FollowRequest]) -> None:
        """Takes acknowledgements until the follower is gone."""
        try:
            for request in requests:
                if request.HasField("recalls"):
                    self._take(request.recalls)
                    continue
                with self._changed:
                    self._window.acknowledged(request.applied)
                    self._changed.notify_all()
                self._feed.acks.acknowledged(self._following, request.applied)
        except grpc.RpcError:
            pass  # it went away
        except Exception:  # the stream ends, and the follower comes back
            _log.exception("what %s sent could not be taken", self._following.node_id)
        finally:
            self.end()

    def _take(self, batch: pb.RecallBatch) -> None:
        self._feed.take_recalls(recalls_of(batch, self._following.node_id))
        self.recalls_taken = batch.sequence

    def end(self) -> None:
        with self._changed:
            self.ended = True
            self._changed.notify_all()

    def sent(self, position: int, size: int) -> None:
        with self._changed:
            self._window.sent(position, size)

    def wait_for_room(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.ended or self._window.open, seconds)


@dataclass(frozen=True, slots=True)
class ReplicationOptions:
    """Where a primary listens for followers, and where clients reach it (``address``);
    ``token`` "" asks for none; ``copy_bytes_per_s`` 0 = no limit."""

    listen: str
    address: str
    token: str = ""
    tls: TlsFiles | None = None
    copy_bytes_per_s: int = 0

    @classmethod
    def from_settings(cls, settings: Settings) -> ReplicationOptions:
        """The listener of ``replication.listen``. Raises FailedPrecondition when the token's
        file cannot be read."""
        own = settings.replication
        return cls(
            own.listen,
            own.advertise or settings.server.listen,
            read_token(own.token_file),
            tls_of(settings),
            own.copy_mib_per_s << 20,
        )


def read_token(path: str) -> str:
    """The secret between the nodes; "" without a file. Raises FailedPrecondition."""
    if not path:
        return ""
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise FailedPrecondition(f"replication.token_file cannot be read: {error}") from error
    if not token:
        raise FailedPrecondition(f"replication.token_file: {path} is empty")
    return token


class ReplicationServer:
    """The listener for followers. ``start`` once, ``stop`` once."""

    def __init__(self, feed: Feed, bootstraps: Bootstraps, options: ReplicationOptions) -> None:
        self._options = options
        self._door = Doorkeeper(options.token, feed.refused)
        self._servicer = ReplicationServicer(feed, bootstraps, options, self._door)
        # A Follow holds its thread; as many again are for Probes.
        self._server = grpc.server(
            ThreadPoolExecutor(2 * MAX_FOLLOWERS, "memsvc-feed"),
            interceptors=[Incidents()],
            options=CHANNEL_OPTIONS,
            maximum_concurrent_rpcs=2 * MAX_FOLLOWERS,
        )
        pb_grpc.add_ReplicationServiceServicer_to_server(self._servicer, self._server)
        self.port = 0

    def add(self, add: Callable[[grpc.Server, Doorkeeper], None]) -> None:
        """Has another service of the nodes added (to the server, behind the same door), before
        ``start``."""
        add(self._server, self._door)

    def start(self) -> None:
        """Listens. Raises ListenError."""
        listen, tls = self._options.listen, self._options.tls
        try:
            if tls is None:
                self.port = self._server.add_insecure_port(listen)
            else:
                self.port = self._server.add_secure_port(listen, server_credentials(tls))
        except RuntimeError as error:
            raise ListenError(f"replication.listen: cannot listen on {listen}") from error
        self._server.start()
        _log.info("followers are served on %s", listen)

    def stop(self) -> None:
        """Ends all streams; followers come back to whoever listens here next."""
        self._servicer.stopping.set()
        self._server.stop(1.0).wait()
