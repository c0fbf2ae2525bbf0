"""Another embedding model in real processes: killed at each step, followed by a replica, answered
by reader processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import memsvc
from memsvc.client import LateVector, LocalEmbedder, MemoryClient
from memsvc.domain.generations import NewGeneration
from memsvc.domain.types import Caller
from memsvc.embedded import Embedded
from memsvc.v1 import memory_service_pb2 as pb
from tests.scenarios import generation_killed as killed
from tests.scenarios import harness as h
from tests.scenarios import replication as r
from tests.scenarios.conftest import MakeNode
from tests.semantics.invariants import check_replay, check_store
from tests.waiting import until

SPACES = (("acme", "bot"), ("globex", "bot"))
ROWS = 40
WIDE = 24
"""Numbers of the new model of nodes."""


def _vector(number: int, dimension: int) -> list[float]:
    return np.random.default_rng(number).standard_normal(dimension).tolist()


def _filled(folder: Path, *, switched: bool) -> None:
    """A store with two models, in segments and behind them."""
    settings = {"storage.seal_rows": 100_000}
    with memsvc.open(folder, dimension=killed.OLD, settings=settings) as store:
        models = store.admin.generations
        ids: dict[tuple[str, str], list[str]] = {}
        for space in SPACES:
            items = [
                {"content": f"word{n}x", "vector": _vector(n, killed.OLD)} for n in range(ROWS)
            ]
            ids[space] = [found["id"] for found in store.write(space, items)["results"]]
        models.create(Caller(), NewGeneration("new", killed.NEW, "old"), False)
        for space in SPACES:
            late = [
                {"vector": {"id": one, "vector": _vector(n, killed.NEW)}}
                for n, one in enumerate(ids[space])
            ]
            store.write(space, late[:30], embedding="new")
            assert store.admin.maintain(1, False, False, 60)[1]
            store.write(space, late[30:], embedding="new")
        if switched:
            models.make_default(Caller(), "new", 0.99, False, False)


def _check(store: Embedded, embedding: str, dimension: int) -> None:
    """Everything is found by its vector of a model, and by its word."""
    for space in SPACES:
        for number in (3, ROWS - 1):
            query = {"vector": _vector(number, dimension), "min_score": -1, "top_k": 200}
            near = store.query(space, **query, embedding=embedding)
            assert near["degraded"]["level"] == 0
            assert len(near["items"]) == ROWS
            (word,) = store.query(space, text=f"word{number}x", embedding=embedding)["items"]
            assert near["items"][0]["id"] == word["id"]


def _vector_files(folder: Path, number: int) -> list[str]:
    return sorted(p.name for p in folder.glob(f"segments/*/*/*-{number}.*"))


@pytest.mark.parametrize("step", killed.MAKE_DEFAULT + killed.DROP)
def test_killed_at_any_step_it_is_one_or_the_other_and_can_be_done_again(
    step: str, tmp_path: Path
) -> None:
    folder, dropping = tmp_path / "data", step in killed.DROP
    _filled(folder, switched=dropping)
    command = [sys.executable, "-m", "tests.scenarios.generation_killed", str(folder), step]
    ended = subprocess.run(command, cwd=h.REPOSITORY, timeout=90, capture_output=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    with memsvc.open(folder, dimension=killed.NEW, settings=killed.SETTINGS) as store:
        models = store.node.generation_admin
        done = not step.endswith(("checked", "appended"))
        old, new = models.facts()
        assert new.generation.is_default is (dropping or done)
        assert old.generation.dropped is (dropping and done)
        _check(store, "new", killed.NEW)
        if not old.generation.dropped:
            _check(store, "old", killed.OLD)
            models.make_default(Caller(), "new", 0.99, False, False)
            models.drop(Caller(), "old", "old", False)
        until(lambda: not models.facts()[0].erasing, 20, "the old vectors to be gone")
        assert _vector_files(folder, 1) == []
        assert _vector_files(folder, 2)
        _check(store, "", killed.NEW)
        with store.node.store.read() as snapshot:
            assert snapshot.first_vectors(1, 1) is None
        check_store(store.node)
        check_replay(store.node, tmp_path / "replay")


# -- nodes ---------------------------------------------------------------------------------


def _generation(node: h.Node, *arguments: str) -> str:
    """memsvc generation ..., which must do it."""
    command = [sys.executable, "-m", "memsvc.cli", "generation", *arguments]
    done = subprocess.run(
        [*command, "--address", f"127.0.0.1:{node.port}"],
        cwd=h.REPOSITORY, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def _late(node: h.Node, ids: list[str], numbers: range) -> str:
    """Late vectors of the new model; the position."""
    items = [
        pb.WriteItem(vector=pb.LateVector(id=one, vector=h.wire(h.vector(n, WIDE))))
        for one, n in zip(ids, numbers, strict=True)
    ]
    return h.write(node, items, embedding="new").position


def _refused(node: h.Node, **query: Any) -> tuple[str, str]:
    """Reason and hint of a query that must be refused."""
    with pytest.raises(grpc.RpcError) as error:
        h.by_vector(node, 1, **query)
    return h.error_info(error.value)[1:]


def test_a_replica_follows_a_change_of_model_from_beginning_to_end(make_node: MakeNode) -> None:
    """Also one that is killed on the way, one that begins afterwards, and restarts of all."""
    primary = r.make_primary(make_node, storage__seal_rows=100_000).start()
    ids = h.fill(primary, range(300))
    primary.maintain(seal_min_rows=1)
    replica = r.make_replica(make_node, primary, storage__seal_rows=100_000).start()

    told = _generation(
        primary, "create", "--embedding", "new", "--dimension", str(WIDE), "--current", "old",
        "--dtype", "f16", "--m", "24",
    )  # fmt: skip
    assert f"new of {WIDE} numbers created" in told
    position = _late(primary, ids[:200], range(200))
    found = h.by_vector(replica, 7, dimension=WIDE, embedding="new", min_position=position)
    assert found.items[0].id == ids[7]
    listed = json.loads(_generation(primary, "list", "--json"))
    assert [(g["embedding"], g["vectors"], g["memories"]) for g in listed] == [
        ("old", 300, 300),
        ("new", 200, 300),
    ]
    lines = _generation(primary, "lacking", "--embedding", "new").splitlines()
    assert [json.loads(line)["id"] for line in lines] == ids[200:]
    replica.kill()
    position = _late(primary, ids[200:], range(200, 300))
    replica.start()
    assert "new is the default" in _generation(primary, "make-default", "new")

    # Asked for what was written after the switch, a replica means the new model too.
    more = [
        pb.WriteItem(memory=pb.Memory(content=f"word{n}x", vector=h.wire(h.vector(n, WIDE))))
        for n in range(300, 320)
    ]
    position = h.write(primary, more).position
    for node in (primary, replica):
        asked = {"min_position": position}
        assert len(h.by_vector(node, 310, dimension=WIDE, top_k=200, **asked).items) == 200
        assert h.by_vector(node, 33, embedding="old", **asked).items[0].id == ids[33]
        reason, hint = _refused(node)
        assert reason == "DIMENSION_MISMATCH" and f"new ({WIDE} numbers, default)" in hint

    # Started again before the configuration was changed, they come up.
    for node in (primary, replica):
        assert node.stop() == 0
        node.start()
    refused = subprocess.run(
        [sys.executable, "-m", "memsvc.cli", "generation", "drop", "old", "--confirm", "old",
         "--address", f"127.0.0.1:{primary.port}"],
        cwd=h.REPOSITORY, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert refused.returncode == 1 and f"set index.dimension: {WIDE}" in refused.stderr
    for node in (primary, replica):
        node.configure(index__embedding="new", index__dimension=WIDE)
        node.signal(signal.SIGHUP)
    until(lambda: "reloaded" in primary.log_file.read_text(), 10, "the reload")
    assert "dropped" in _generation(primary, "drop", "old", "--confirm", "old")
    r.level(primary, replica)
    for node in (primary, replica):
        assert _refused(node, embedding="old")[0] == "EMBEDDING_UNKNOWN"
        until(
            lambda node=node: _vector_files(node.data_dir, 1) == [],  # type: ignore[misc]
            20,
            "the old files to be gone",
        )
    until(lambda: "ERASING" not in _generation(primary, "list", "--json"), 20, "the old vectors")
    r.level(primary, replica)
    late = r.make_replica(
        make_node, primary, "late", index__embedding="new", index__dimension=WIDE
    ).start()
    r.level(primary, late)
    for node in (primary, replica, late):
        assert h.by_vector(node, 33, dimension=WIDE).items[0].id == ids[33]
        assert h.by_word(node, "word310x").items
        assert node.stop() == 0
    assert r.digest(primary) == r.digest(replica) == r.digest(late)
    r.same_records(primary, replica)
    r.same_records(primary, late)
    replica.start()
    assert h.by_vector(replica, 33, dimension=WIDE).items[0].id == ids[33]


def test_reader_processes_know_the_models_at_once(make_node: MakeNode) -> None:
    node = make_node(server__readers=1).start()
    ids = h.fill(node, range(40))
    node.maintain(seal_min_rows=1)
    assert h.by_vector(node, 7).items[0].id == ids[7]
    _generation(node, "create", "--embedding", "new", "--dimension", str(WIDE), "--current", "old")
    _late(node, ids, range(40))
    assert h.by_vector(node, 7, dimension=WIDE, embedding="new").items[0].id == ids[7]
    _generation(node, "make-default", "new")
    assert h.by_vector(node, 7, dimension=WIDE).items[0].id == ids[7]
    assert _refused(node)[0] == "DIMENSION_MISMATCH"
    node.configure(index__embedding="new", index__dimension=WIDE)
    node.signal(signal.SIGHUP)
    until(lambda: "reloaded" in node.log_file.read_text(), 10, "the reload")
    _generation(node, "drop", "old", "--confirm", "old")
    assert _refused(node, embedding="old")[0] == "EMBEDDING_UNKNOWN"
    until(lambda: _vector_files(node.data_dir, 1) == [], 20, "the old files to be gone")
    found = h.by_vector(node, 7, dimension=WIDE)
    assert (found.items[0].id, found.degraded.level) == (ids[7], 0)
    assert node.inspect()["damaged_files"] == 0


def test_the_offline_embedder_takes_over_from_another_model(make_node: MakeNode) -> None:
    """As the page on changing the model tells it: the texts come from the store, page by page."""
    texts = ["The dog is called Rex.", "Ann lives in Utrecht.", "The meeting is on Friday."]
    node = make_node().start()
    h.write(node, [h.memory(n, text) for n, text in enumerate(texts)])
    address = f"127.0.0.1:{node.port}"
    embedder = LocalEmbedder()
    with MemoryClient(address, embedding=embedder.name) as client:
        client.admin.create_generation(embedder.name, embedder.dimension, current="old")
        token = ""
        while True:
            page = client.admin.lacking(embedder.name, page_size=2, page_token=token)
            vectors = embedder.embed([m.content or m.summary for m in page.memories])
            late = [
                LateVector(m.id, vector, if_version=m.version)
                for m, vector in zip(page.memories, vectors, strict=True)
            ]
            if late:
                client.write("acme/bot", late)
            token = page.next_page_token
            if not token:
                break
        assert client.admin.set_default_generation(embedder.name).coverage == 1.0
    with MemoryClient(address) as client:
        (asked,) = embedder.embed(["What is the name of the pet?"])
        found = client.query("acme/bot", vector=asked, top_k=1, min_score=-1)
        assert found.items[0].summary == texts[0]
