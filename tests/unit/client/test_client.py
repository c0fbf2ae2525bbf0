"""The client against a small service over real gRPC."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import grpc
import numpy as np
import pytest

from memsvc.client import (
    ClientError,
    ForgetMode,
    Include,
    MemoryClient,
    Metadata,
    Mode,
    NewMemory,
    RankOptions,
    Timeouts,
    Tls,
    Touch,
    Update,
    to_plain,
    vector_array,
)
from memsvc.domain.errors import Violation
from memsvc.domain.types import LateVector, Status, TouchKind
from memsvc.v1 import memory_service_pb2 as pb
from tests.unit.client.fake import Running, refuse

NS = "acme/assistant/chat:1"


@pytest.fixture
def client(running: Running) -> Iterator[MemoryClient]:
    with MemoryClient(running.address, token="ms_secret") as client:
        yield client


def test_what_was_written_is_found_by_vector_words_id_and_time(client: MemoryClient) -> None:
    vector = np.arange(1, 9, dtype=np.float32)
    written = client.write(
        NS,
        [
            NewMemory(
                "likes tea", vector=vector, metadata=Metadata(ts=1_000, attributes={"n": (1 == 1)})
            )
        ],
    )
    (result,) = written.results
    assert result.outcome == pb.OUTCOME_CREATED
    for answer in (
        client.query("acme/assistant", vector=vector),
        client.query("acme/assistant", text="tea"),
        client.query("acme/assistant", ids=[result.id]),
        client.query("acme/assistant", filters={"ts": {"lt": 2_000}, "session": "chat:1"}),
    ):
        assert [hit.id for hit in answer.items] == [result.id]
    full = client.query(
        "acme/assistant", vector=list(vector), include=Include(content=True, vector=True)
    ).items[0]
    assert full.content == "likes tea"
    assert vector_array(full.vector).tolist() == vector.tolist()
    assert to_plain(full)["metadata"]["attributes"] == {"n": True}


def test_every_kind_of_item_keeps_its_fields(client: MemoryClient, running: Running) -> None:
    client.write(NS, [NewMemory("a", dedup_key="k", ttl_ms=0, status=Status.REVIEW)])
    (memory,) = running.service.calls("Write")[0].items
    assert memory.memory.HasField("ttl_ms") and memory.memory.ttl_ms == 0
    assert memory.memory.status == Status.REVIEW
    one = np.ones(8, dtype=np.float32)
    items = [
        Touch("m00001", ts=5, importance=0.0, kind=TouchKind.USED),
        Update("m00001", content="", clear_fields=("topic",), status=Status.ARCHIVED, vector=one),
    ]
    client.write(NS, items, request_id="mine")
    request = running.service.calls("Write")[1]
    touch, update = request.items[0].touch, request.items[1].update
    assert request.request_id == "mine"
    assert (touch.ts, touch.HasField("importance"), touch.kind) == (5, True, TouchKind.USED)
    assert update.HasField("content") and not update.HasField("summary")
    assert update.clear_fields == ["topic"] and update.HasField("vector")
    from memsvc.client.messages import item_message

    late = item_message(LateVector("m1", one, 3)).vector
    assert (late.id, late.if_version, len(late.vector.data)) == ("m1", 3, 32)


def test_writes_and_forgets_carry_a_request_id_so_that_retries_are_safe(
    client: MemoryClient, running: Running
) -> None:
    client.write(NS, [NewMemory("a")])
    client.write(NS, [NewMemory("a")])
    client.forget(NS, ids=["m00001"])
    client.forget(NS, ids=["m00001"], validate_only=True)
    first, second = running.service.calls("Write")
    assert first.request_id and first.request_id != second.request_id
    real, trial = running.service.calls("Forget")
    assert real.request_id and not trial.request_id


def test_unset_options_are_left_to_the_service(client: MemoryClient, running: Running) -> None:
    client.query(NS, text="x")
    (request,) = running.service.calls("Query")
    for field in ("min_score", "filters", "as_of", "rank", "include", "vector"):
        assert not request.HasField(field)
    client.query(NS, text="x", mode=Mode.KEYWORD, rank=RankOptions(max_per_topic=0), min_score=0.0)
    request = running.service.calls("Query")[1]
    assert request.mode == pb.MODE_KEYWORD
    assert request.HasField("min_score") and request.rank.HasField("max_per_topic")


def test_mode_as_text_is_refused_with_the_name_to_use(client: MemoryClient) -> None:
    with pytest.raises(TypeError, match=r"Mode\.HYBRID"):
        client.query(NS, text="x", mode="hybrid")  # type: ignore[arg-type]


def test_certificate_without_its_key_does_not_abort_the_process() -> None:
    with pytest.raises(ValueError, match="go together"):
        MemoryClient("localhost:1", tls=Tls(cert_file="me.pem"))


def test_browse_goes_through_all_pages(client: MemoryClient) -> None:
    client.write(NS, [NewMemory(f"n {i}", metadata=Metadata(ts=i)) for i in range(25)])
    found = list(client.browse(NS, filters={"ts": {"gte": 5}}, page_size=4))
    assert [hit.metadata.ts for hit in found] == list(range(24, 4, -1))


def test_forget_hard_and_decay(client: MemoryClient) -> None:
    client.write(NS, [NewMemory("a"), NewMemory("b")])
    assert client.forget(NS, filters={"session": "chat:1"}, validate_only=True).changed == 0
    assert client.forget(NS, ids=["m00001"], factor=0.1).matched == 1
    assert client.forget(NS, ids=["m00002"], mode=ForgetMode.HARD).changed == 1
    left = client.query(NS, ids=["m00001", "m00002"]).items
    assert [hit.id for hit in left] == ["m00001"]
    assert left[0].importance_stored == pytest.approx(0.05)


def test_administration(client: MemoryClient) -> None:
    for namespace in ("a/x", "a/y", "b/x"):
        client.write(namespace, [NewMemory("n")])
    assert [(one.tenant, one.agent) for one in client.admin.list_tenants()] == [
        ("a", "x"),
        ("a", "y"),
        ("b", "x"),
    ]
    exported = list(client.admin.export_tenant("a"))
    assert [(one.sent, one.total) for one in exported] == [(1, 2), (2, 2)]
    assert client.admin.erase_tenant("a", validate_only=True).erased == 2
    assert client.admin.erase_tenant("a", "x").erased == 1
    assert client.admin.set_degraded(3, "drill").forced
    assert not client.admin.set_degraded(None).forced
    assert client.admin.inspect()["log"]["head"] == 3
    assert client.admin.maintain(purge=True).started == 1
    assert client.admin.maintain(merge_all=True, wait_seconds=3).idle
    assert client.admin.start_rebuild("a", everything=True).segments_left == 4
    assert client.admin.rebuild().segments == 4
    assert client.admin.cancel_rebuild().segments_left == 2
    assert list(client.admin.reload().changed) == ["log.level"]


def test_the_token_travels_with_every_call(client: MemoryClient, running: Running) -> None:
    client.health()
    client.query(NS, text="x")
    list(client.admin.export_tenant("a"))
    assert running.service.tokens == ["ms_secret"] * 3


def test_an_error_keeps_reason_hint_fields_and_delay(
    client: MemoryClient, running: Running
) -> None:
    running.service.hook = lambda call, request, context: refuse(
        context,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "too fast",
        reason="RATE_LIMITED",
        hint="slow down",
        fields=(("items[0]", "is too much"),),
        retry_ms=1_500,
    )
    with pytest.raises(ClientError) as caught:
        client.write(NS, [NewMemory("a")])
    error = caught.value
    assert str(error) == "too fast [RATE_LIMITED]"
    assert (error.code, error.reason, error.hint) == (
        "RESOURCE_EXHAUSTED",
        "RATE_LIMITED",
        "slow down",
    )
    assert error.violations == (Violation("items[0]", "is too much"),)
    assert error.retry_after_ms == 1_500
    assert error.retriable and not error.unreachable


def test_an_error_in_the_middle_of_a_stream_is_a_client_error(
    client: MemoryClient, running: Running
) -> None:
    running.service.hook = lambda call, request, context: refuse(
        context, grpc.StatusCode.PERMISSION_DENIED, "no", reason="PERMISSION_DENIED"
    )
    with pytest.raises(ClientError, match="no"):
        list(client.admin.export_tenant("a"))


def test_a_broken_connection_is_retried_without_the_caller_noticing(
    client: MemoryClient, running: Running
) -> None:
    left = [2]

    def flaky(call: str, request: object, context: grpc.ServicerContext) -> None:
        if left[0]:
            left[0] -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "going away")

    running.service.hook = flaky
    assert client.write(NS, [NewMemory("a")]).results[0].id
    ids = {request.request_id for request in running.service.calls("Write")}
    assert len(ids) == 1 and len(running.service.calls("Write")) == 3


def test_nobody_there_is_told_within_the_connect_time() -> None:
    with socket.socket() as blocker:
        blocker.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
        address = f"127.0.0.1:{blocker.getsockname()[1]}"
        with (
            MemoryClient(address, timeouts=Timeouts(connect=0.3)) as client,
            pytest.raises(ClientError) as caught,
        ):
            client.health()
    assert caught.value.unreachable and "memsvc serve" in caught.value.hint


def test_an_address_that_never_answers_costs_the_connect_time_not_the_call() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with (
            MemoryClient(address, timeouts=Timeouts(connect=0.3, read=30)) as client,
            pytest.raises(ClientError) as caught,
        ):
            client.health()
    assert caught.value.unreachable


def test_a_service_that_stops_is_unreachable_not_a_refusal(running: Running) -> None:
    with MemoryClient(running.address) as client:
        client.health()
        running.stop()
        with pytest.raises(ClientError) as caught:
            client.health()
    assert caught.value.unreachable


def test_a_slow_answer_ends_at_the_deadline(client: MemoryClient, running: Running) -> None:
    running.service.hook = lambda call, request, context: time.sleep(1)
    with pytest.raises(ClientError) as caught:
        client.query(NS, text="x", timeout=0.2)
    assert caught.value.code == "DEADLINE_EXCEEDED"
    assert not caught.value.unreachable


def test_plain_text_against_tls_is_unreachable(running: Running) -> None:
    with (
        MemoryClient(running.address, tls=Tls(), timeouts=Timeouts(connect=0.5)) as client,
        pytest.raises(ClientError) as caught,
    ):
        client.health()
    assert "TLS" in caught.value.hint


@pytest.mark.parametrize("text", ["", "acme", "acme/", "/x", "a/b/c/d", "a//c"])
def test_a_namespace_needs_tenant_and_agent(client: MemoryClient, text: str) -> None:
    with pytest.raises(ValueError, match="tenant/agent"):
        client.query(text, text="x")
