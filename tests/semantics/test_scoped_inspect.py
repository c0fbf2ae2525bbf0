"""Inspect by one who administers an agent, not the node."""

from __future__ import annotations

import json
from typing import Any

import grpc

from memsvc.admin.v1 import admin_service_pb2 as admin_pb
from memsvc.service.access import Access, Gate
from memsvc.service.limits import RateLimiter
from tests.edges.fakes import FakePrincipal, FakeTokens
from tests.edges.harness import channel, make_edge, rpc_server
from tests.edges.rpc_client import Client, auth, code
from tests.semantics.harness import World

OURS = ("acme", "helper")


def test_an_agents_admin_sees_only_its_partition(world: World) -> None:
    ours, theirs = world.put(), world.put(("acme", "other", "s1"))
    tokens = FakeTokens(ms_a=FakePrincipal("a", OURS, frozenset({"admin"})))
    edge = make_edge(tokens)
    edge.gate = Gate(
        edge.api,
        access=Access(tokens),
        limiter=RateLimiter(0.0),
        metrics=edge.metrics,
        admin=world.admin,
    )
    with rpc_server(edge) as server, channel(server.port) as opened:
        admin, token = Client(opened).admin, auth("ms_a")

        def inspect(**more: Any) -> dict[str, Any]:
            request = admin_pb.InspectRequest(tenant=OURS[0], agent=OURS[1], **more)
            found: dict[str, Any] = json.loads(admin.Inspect(request, metadata=token).json)
            return found

        assert set(inspect()) == {"partition"}
        assert inspect()["partition"]["memories"] == 1
        assert len(inspect(memory_id=ours)["memory"]) == 1
        assert inspect(memory_id=theirs)["memory"] == []
        for more in ({"verify": True}, {"log_tail": 1}):
            refused = code(lambda more=more: inspect(**more))
            assert refused is grpc.StatusCode.PERMISSION_DENIED
