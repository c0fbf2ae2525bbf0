"""Administration over gRPC: who may, and what is refused as a likely mistake."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from memsvc.admin.v1 import admin_service_pb2 as admin_pb
from memsvc.domain.errors import invalid
from memsvc.domain.generations import NewGeneration
from memsvc.v1 import types_pb2
from tests.edges.fakes import FakePrincipal, FakeTokens
from tests.edges.harness import Edge, channel, make_edge, rpc_server
from tests.edges.rpc_client import Client, auth, code


def test_administration_translates_every_call(guarded: tuple[Edge, Client]) -> None:
    edge, client = guarded
    admin, token = client.admin, auth()
    listed = admin.ListTenants(admin_pb.ListTenantsRequest(), metadata=token)
    assert (listed.agents[0].tenant, listed.next_page_token) == ("acme", "next")
    exported = list(admin.ExportTenant(admin_pb.ExportTenantRequest(tenant="acme"), metadata=token))
    assert [(e.sent, e.total) for e in exported] == [(1, 2), (2, 2)]
    assert '"köln"' in exported[0].json
    erased = admin.EraseTenant(
        admin_pb.EraseTenantRequest(tenant="acme", agent="bot", confirm="acme/bot"),
        metadata=token,
    )
    assert (erased.erased, erased.position) == (7, "pos-7")
    forced = admin.SetDegraded(admin_pb.SetDegradedRequest(level=3, reason="drill"), metadata=token)
    assert forced.forced and forced.degraded.level == 3
    assert not admin.SetDegraded(admin_pb.SetDegradedRequest(), metadata=token).forced
    assert "partitions" in admin.Inspect(admin_pb.InspectRequest(), metadata=token).json
    assert admin.Maintain(admin_pb.MaintainRequest(purge=True), metadata=token).idle
    begun = admin.StartRebuild(
        admin_pb.StartRebuildRequest(tenant="acme", everything=True), metadata=token
    ).rebuild
    assert (begun.id, begun.dtype, begun.m, begun.ef_construction) == ("1f", "f16", 24, 300)
    assert (begun.state, begun.started_at, begun.ended_at) == (admin_pb.Rebuild.STATE_FAILED, 5, 9)
    assert (begun.segments, begun.segments_left, begun.graphs_outdated) == (1, 0, 4)
    assert begun.failures[0].reason == "bad"
    assert admin.GetRebuild(admin_pb.GetRebuildRequest(), metadata=token).rebuild == begun
    assert admin.CancelRebuild(admin_pb.CancelRebuildRequest(), metadata=token).rebuild == begun
    assert admin.Reload(admin_pb.ReloadRequest(), metadata=token).needs_restart
    taken = admin.TakeSnapshot(admin_pb.TakeSnapshotRequest(), metadata=token)
    assert (taken.path, taken.position, taken.epoch) == ("/snapshots/one", 7, 2)
    assert edge.admin.asked[2][0] == "root"


def test_embedding_models_are_translated(guarded: tuple[Edge, Client]) -> None:
    edge, client = guarded
    admin, token, state = client.admin, auth(), admin_pb.Generation
    listed = admin.ListGenerations(admin_pb.ListGenerationsRequest(), metadata=token).generations
    assert [g.state for g in listed] == [
        state.STATE_SERVING,
        state.STATE_SERVING,
        state.STATE_ERASING,
        state.STATE_DROPPED,
    ]
    assert (listed[1].embedding, listed[1].dimension, listed[1].is_default) == ("new", 12, False)
    assert (listed[1].memories, listed[1].vectors, listed[1].eta_ms) == (10, 4, 60_000)
    assert listed[1].coverage == 0.4
    made = admin.CreateGeneration(
        admin_pb.CreateGenerationRequest(
            embedding="new", dimension=12, current="old", dtype="f16", m=8, ef_construction=90
        ),
        metadata=token,
    ).generation
    assert (made.number, made.needed_bytes, made.m) == (2, 5_000, 8)
    request = admin_pb.SetDefaultGenerationRequest(embedding="new", force=True)
    assert admin.SetDefaultGeneration(request, metadata=token).generation.is_default
    # 0 is a share that is given; what is not given is the usual one.
    request = admin_pb.SetDefaultGenerationRequest(embedding="new", min_coverage=0)
    admin.SetDefaultGeneration(request, metadata=token)
    request = admin_pb.DropGenerationRequest(embedding="old", confirm="old")
    assert admin.DropGeneration(request, metadata=token).generation.state == state.STATE_ERASING
    page = admin.ListLacking(
        admin_pb.ListLackingRequest(embedding="new", tenant="acme", page_size=5), metadata=token
    )
    (memory,) = page.memories
    assert (memory.namespace.session, memory.version, memory.summary) == ("s", 3, "köln")
    assert (memory.status, page.next_page_token) == (types_pb2.STATUS_REVIEW, "more")
    assert edge.admin.asked == [
        ("root", NewGeneration("new", 12, "old", "f16", 8, 90), False),
        ("root", "new", 0.99, True, False),
        ("root", "new", 0.0, False, False),
        ("root", "old", "old", False),
        ("acme", "", "new", 5, ""),
    ]
    for name, most in (("embedding", 128), ("page_token", 1_024)):
        request = admin_pb.ListLackingRequest(**{name: "x" * (most + 1)})
        refused = lambda asked=request: admin.ListLacking(asked, metadata=token)  # noqa: E731
        assert code(refused) is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("method", "request_message"),
    [
        ("EraseTenant", admin_pb.EraseTenantRequest(tenant="acme")),
        ("EraseTenant", admin_pb.EraseTenantRequest(tenant="acme", agent="b", confirm="acme")),
        ("EraseTenant", admin_pb.EraseTenantRequest(agent="b", confirm="/b")),
        ("ExportTenant", admin_pb.ExportTenantRequest()),
        ("ExportTenant", admin_pb.ExportTenantRequest(tenant="a/b")),
        ("SetDegraded", admin_pb.SetDegradedRequest(level=5)),
        ("SetDegraded", admin_pb.SetDegradedRequest(reason="x" * 300)),
        ("ListTenants", admin_pb.ListTenantsRequest(page_size=20_000)),
        ("Inspect", admin_pb.InspectRequest(log_tail=2_000)),
        ("StartRebuild", admin_pb.StartRebuildRequest(agent="b")),
    ],
)
def test_administration_refuses_what_could_be_a_mistake(
    edge: Edge, client: Client, method: str, request_message: Any
) -> None:
    def call() -> None:
        answer = getattr(client.admin, method)(request_message)
        if method == "ExportTenant":
            list(answer)

    assert code(call) is grpc.StatusCode.INVALID_ARGUMENT
    assert edge.admin.asked == []


def test_administration_of_one_tenant_stays_there() -> None:
    tokens = FakeTokens(ms_a=FakePrincipal("a", ("acme",), frozenset({"admin"})))
    edge = make_edge(tokens)
    with rpc_server(edge) as server, channel(server.port) as opened:
        admin, token = Client(opened).admin, auth("ms_a")
        assert admin.ListTenants(admin_pb.ListTenantsRequest(tenant="acme"), metadata=token)
        for call in (
            lambda: admin.ListTenants(admin_pb.ListTenantsRequest(), metadata=token),
            lambda: admin.ListTenants(
                admin_pb.ListTenantsRequest(tenant="acme-corp"), metadata=token
            ),
            lambda: list(
                admin.ExportTenant(admin_pb.ExportTenantRequest(tenant="b"), metadata=token)
            ),
            lambda: admin.SetDegraded(admin_pb.SetDegradedRequest(level=4), metadata=token),
            lambda: admin.Inspect(
                admin_pb.InspectRequest(tenant="acme", agent="b", log_tail=1), metadata=token
            ),
            lambda: admin.Maintain(admin_pb.MaintainRequest(), metadata=token),
            lambda: admin.StartRebuild(admin_pb.StartRebuildRequest(tenant="acme"), metadata=token),
            lambda: admin.GetRebuild(admin_pb.GetRebuildRequest(), metadata=token),
            lambda: admin.CancelRebuild(admin_pb.CancelRebuildRequest(), metadata=token),
            lambda: admin.Reload(admin_pb.ReloadRequest(), metadata=token),
            lambda: admin.TakeSnapshot(admin_pb.TakeSnapshotRequest(), metadata=token),
        ):
            assert code(call) is grpc.StatusCode.PERMISSION_DENIED


def test_export_that_fails_half_way_says_so(edge: Edge, client: Client) -> None:
    def memories() -> Iterator[dict[str, object]]:
        yield {"id": "1"}
        raise invalid("x", "gone")

    edge.admin.export_tenant = lambda *_: (2, memories())
    got: list[str] = []

    def call() -> None:
        for part in client.admin.ExportTenant(admin_pb.ExportTenantRequest(tenant="acme")):
            got.append(part.json)

    assert code(call) is grpc.StatusCode.INVALID_ARGUMENT and len(got) == 1
    text = edge.metrics.exposition().decode()
    assert 'call="ExportTenant",code="INVALID_ARGUMENT"' in text
