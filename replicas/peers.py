"""The other nodes of the group, as this one reaches them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, TypeVar

import grpc

from memsvc.config import Settings
from memsvc.domain.group import Seen
from memsvc.domain.replication import Standing
from memsvc.replication.v1 import group_service_pb2 as pb
from memsvc.replication.v1 import group_service_pb2_grpc as pb_grpc
from memsvc.rpc.replication import read_token, standing_of
from replicas.source import open_channel, token_metadata

T = TypeVar("T")

STATUS_S: Final = 1.0
"""A node that takes longer to say what it is counts as silent."""
STEP_S: Final = 5.0
"""The same for a step that it has to write down first."""


class Peers:
    """Calls to the nodes of replication.nodes."""

    def __init__(self, settings: Settings) -> None:
        self.nodes = settings.replication.nodes
        self._settings = settings
        self._token = read_token(settings.replication.token_file)

    def look(self) -> list[Seen]:
        """What the nodes that answer say they are, all asked at once; this one is among them."""
        return self._each(self.nodes, self.status)

    def status(self, node: str) -> Seen:
        """What a node says it is. Raises grpc.RpcError."""
        with self._connected(node) as stub:
            found = stub.Status(
                pb.StatusRequest(), timeout=STATUS_S, metadata=token_metadata(self._token)
            )
        return Seen(
            node,
            found.node_id,
            found.leads,
            standing_of(found.standing),
            found.fence,
            found.primary,
            found.address,
            found.min_acks,
        )

    def fence(self, nodes: Iterable[str], request: pb.FenceRequest) -> dict[str, Standing]:
        """Fences nodes, all at once; where the logs of those stand that are fenced now."""

        def ask(node: str) -> tuple[str, pb.FenceResponse]:
            with self._connected(node) as stub:
                return node, stub.Fence(
                    request, timeout=STEP_S, metadata=token_metadata(self._token)
                )

        answers = self._each(tuple(nodes), ask)
        return {node: standing_of(found.standing) for node, found in answers if found.fenced}

    def hand_over(self, node: str, request: pb.HandOverRequest) -> pb.HandOverResponse:
        """One step of a switch-over. Raises grpc.RpcError."""
        with self._connected(node) as stub:
            return stub.HandOver(request, timeout=STEP_S, metadata=token_metadata(self._token))

    def lead(self, node: str, epoch: int) -> bool:
        """Gives an epoch up to another node; whether it is primary now. Raises grpc.RpcError."""
        with self._connected(node) as stub:
            request = pb.LeadRequest(epoch=epoch)
            return stub.Lead(request, timeout=STEP_S, metadata=token_metadata(self._token)).done

    @contextmanager
    def _connected(self, node: str) -> Iterator[pb_grpc.GroupServiceStub]:
        with open_channel(node, self._settings) as channel:
            yield pb_grpc.GroupServiceStub(channel)

    def _each(self, nodes: Sequence[str], ask: Callable[[str], T]) -> list[T]:
        """What those answer that do."""

        def answered(node: str) -> list[T]:
            try:
                return [ask(node)]
            except grpc.RpcError:
                return []

        if not nodes:
            return []
        with ThreadPoolExecutor(len(nodes), "memsvc-peers") as pool:
            return [found for some in pool.map(answered, nodes) for found in some]
