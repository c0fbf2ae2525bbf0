"""The four calls, and administration, of one node."""

from __future__ import annotations

from memsvc.client.admin import AdminClient
from memsvc.client.calls import MemoryCalls
from memsvc.client.connection import (
    DEFAULT_ADDRESS,
    DEFAULT_TOKEN_HEADER,
    Connection,
    Timeouts,
    Tls,
)
from memsvc.v1 import memory_service_pb2 as pb
from memsvc.v1 import memory_service_pb2_grpc as pb_grpc


class MemoryClient(MemoryCalls):
    """A thin client of one node; see MemoryCalls for what can be asked.

    Connects at the first call; safe to use from several threads; a context manager. For a
    primary with replicas take RoutedClient.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        token: str | None = None,
        *,
        tls: Tls | None = None,
        timeouts: Timeouts | None = None,
        token_header: str = DEFAULT_TOKEN_HEADER,
        embedding: str = "",
    ) -> None:
        """``embedding`` names the model of all vectors; empty = the store's default one.
        ``token_header`` is the server's setting auth.token_header."""
        super().__init__(timeouts, embedding)
        self._connection = Connection(address, token, tls, self.timeouts, token_header)
        self._stub = pb_grpc.MemoryServiceStub(self._connection.channel)
        self.admin = AdminClient(self._connection)
        """Calls that need the admin right."""

    @property
    def address(self) -> str:
        """host:port of the service."""
        return self._connection.address

    def _write(self, request: pb.WriteRequest, timeout: float) -> pb.WriteResponse:
        return self._connection.call(self._stub.Write, request, timeout)

    def _query(self, request: pb.QueryRequest, timeout: float) -> pb.QueryResponse:
        return self._connection.call(self._stub.Query, request, timeout)

    def _forget(self, request: pb.ForgetRequest, timeout: float) -> pb.ForgetResponse:
        return self._connection.call(self._stub.Forget, request, timeout)

    def health(self, *, timeout: float | None = None) -> pb.HealthResponse:
        """How the node is. Needs no token; without one only readiness is told."""
        return self._connection.call(
            self._stub.Health, pb.HealthRequest(), timeout or self.timeouts.read
        )

    def close(self) -> None:
        """Closes the connection; calls in flight are broken off."""
        self._connection.close()
