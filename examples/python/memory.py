"""Calls to a primary and its replicas: routing, token, deadline, retries and error details."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from memsvc.v1 import memory_service_pb2_grpc

READ_S, CHANGE_S = 5.0, 10.0  # deadlines of one attempt
ATTEMPTS = 8
LONGEST_PAUSE_S = 30.0  # who is asked to wait longer is told instead


def connect(nodes: Sequence[str], service_config: Path) -> grpc.Channel:
    """A channel over all nodes; the service config says which of them are asked.

    For a server with TLS take ``grpc.secure_channel``. A DNS name of all nodes does as well as a
    list: ``dns:///memory.internal:8848``.
    """
    options = [
        ("grpc.service_config", service_config.read_text()),
        ("grpc.max_reconnect_backoff_ms", 1_000),  # a node that is back is noticed within a second
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
    ]
    return grpc.insecure_channel("ipv4:" + ",".join(nodes), options)


@dataclass(eq=False)  # not frozen: whoever passes it on sets its traceback
class Refusal(Exception):
    """What a refused call said."""

    code: str
    reason: str = ""
    violations: tuple[tuple[str, str], ...] = ()
    retry_after_s: float | None = None

    @staticmethod
    def of(error: grpc.RpcError) -> Refusal:
        """Reads the google.rpc details of an error."""
        reason, violations, delay = "", [], None
        status = rpc_status.from_call(error)
        for detail in status.details if status else ():
            if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
                info = error_details_pb2.ErrorInfo()
                detail.Unpack(info)
                reason = info.reason
            elif detail.Is(error_details_pb2.BadRequest.DESCRIPTOR):
                bad = error_details_pb2.BadRequest()
                detail.Unpack(bad)
                violations += [(v.field, v.description) for v in bad.field_violations]
            elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
                retry = error_details_pb2.RetryInfo()
                detail.Unpack(retry)
                delay = retry.retry_delay.ToTimedelta().total_seconds()
        return Refusal(error.code().name, reason, tuple(violations), delay)

    def pause_s(self) -> float | None:
        """Seconds after which the same call may be sent again; None when that cannot help."""
        if self.retry_after_s is not None:
            return self.retry_after_s if self.retry_after_s <= LONGEST_PAUSE_S else None
        # A switch-over: the channel finds the new primary within a second.
        return 0.2 if self.reason == "NOT_PRIMARY" else None


class Memory:
    """The four calls over two channels: one for reads, one for changes."""

    def __init__(self, nodes: Sequence[str], configs: Path, token: str) -> None:
        self._channels = [connect(nodes, configs / f"{name}.json") for name in ("reads", "changes")]
        reads, changes = map(memory_service_pb2_grpc.MemoryServiceStub, self._channels)
        self._query, self._write, self._forget = reads.Query, changes.Write, changes.Forget
        self._token = token

    def query(self, request: Any, *, token: str | None = None, within_s: float = READ_S) -> Any:
        """Query, at any node that is fit."""
        return self._call(self._query, request, token, within_s)

    def write(self, request: Any, *, token: str | None = None, within_s: float = CHANGE_S) -> Any:
        """Write, at the primary. The request must have a request_id, since it may be sent again."""
        return self._call(self._write, request, token, within_s)

    def forget(self, request: Any, *, token: str | None = None, within_s: float = CHANGE_S) -> Any:
        """Forget, at the primary; as Write."""
        return self._call(self._forget, request, token, within_s)

    def _call(
        self, method: Callable[..., Any], request: Any, token: str | None, within_s: float
    ) -> Any:
        metadata = (("x-memory-token", self._token if token is None else token),)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return method(request, timeout=within_s, metadata=metadata)
            except grpc.RpcError as error:
                refusal = Refusal.of(error)
            pause = refusal.pause_s()
            if pause is None or attempt == ATTEMPTS:
                break
            pause *= 1 + random.random() / 4  # callers that were refused together come apart
            print(f"{refusal.reason}: again in {pause:.2f} s", file=sys.stderr)
            time.sleep(pause)
        raise refusal

    def close(self) -> None:
        """Ends the connections."""
        for channel in self._channels:
            channel.close()
