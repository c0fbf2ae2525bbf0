"""Snapshots and backups in an S3-compatible store, by the commands people use."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from memsvc.admin.v1 import admin_service_pb2 as admin_pb
from memsvc.service.snapshots.copying import copy_snapshot
from memsvc.service.snapshots.objects import ObjectPlace
from memsvc.service.snapshots.places import place_of
from memsvc.service.snapshots.verifying import verify
from tests.scenarios import harness as h
from tests.scenarios import replication as r
from tests.scenarios.object_store import SECRET, ObjectStore, credentials
from tests.scenarios.test_backup import contents, memsvc, told
from tests.waiting import until

MakeNode = Callable[..., h.Node]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    store = ObjectStore(tmp_path_factory.mktemp("objects") / "store")
    try:
        yield store.start()
    finally:
        store.stop()


@pytest.fixture
def store(running: ObjectStore) -> Iterator[ObjectStore]:
    """The server, with the right credentials in the environment."""
    with credentials():
        yield running


def take(node: h.Node) -> admin_pb.TakeSnapshotResponse:
    """A snapshot now."""
    return node.admin().TakeSnapshot(admin_pb.TakeSnapshotRequest(), timeout=60)


def names(store: ObjectStore, prefix: str) -> set[str]:
    """What there is below a prefix, whole or not; "segments" for what snapshots share."""
    return {key.partition("/")[0] for key in store.keys(prefix)}


def test_a_backup_is_verified_and_restored_and_segments_are_sent_once(
    make_node: MakeNode, store: ObjectStore, tmp_path: Path
) -> None:
    node = make_node().start()
    h.fill(node, range(500))
    node.maintain(seal_min_rows=1)
    place = store.address("one/two")
    first = told("backup", "--to", place, node=node)
    sent = {key: at for key, at in store.keys("one/two").items() if key.startswith("segments/")}
    assert sent
    h.fill(node, range(500, 520))
    expected = contents(node)
    second = told("backup", "--to", place, node=node)
    again = {key: at for key, at in store.keys("one/two").items() if key.startswith("segments/")}
    assert again == sent, "not even written again"
    h.fill(node, range(520, 540))
    latest = contents(node)
    node.stop()
    assert [v["position"] for v in told("verify", place)] == [first["position"], second["position"]]
    (alone,) = told("verify", second["path"])
    assert (alone["sound"], alone["counts"]["memories"]) == (True, 520)
    for name, wish, wanted in (
        ("then", ["--position", second["position"]], expected),
        ("now", ["--log", node.data_dir], latest),
    ):
        done = told("restore", place, "--to", tmp_path / name, *wish)
        assert done["base"] == second["path"]
        restored = make_node(f"node-{name}", data_dir=tmp_path / name).start()
        assert contents(restored) == wanted
        assert restored.inspect(verify=True)["damaged_found"] == 0
    assert {path.name for path in tmp_path.iterdir()} >= {"then", "now"}
    assert not list(tmp_path.glob("*.restoring"))


def test_a_node_keeps_its_last_snapshots_there_and_nothing_else(
    make_node: MakeNode, store: ObjectStore, tmp_path: Path
) -> None:
    place = store.address("kept")
    node = make_node(storage__snapshot_dir=place, storage__snapshot_keep=2).start()
    for n in range(4):
        h.fill(node, range(100 * n, 100 * n + 60))
        node.maintain(seal_min_rows=1, merge_all=True)
        last = take(node)
    kept = told("verify", place)
    assert all(v["sound"] for v in kept)
    assert kept[-1]["path"] == last.path
    assert names(store, "kept") == {
        "segments",
        *(v["path"].split("/")[4].split("?")[0] for v in kept),
    }
    assert len(kept) == 2
    assert not (node.data_dir / "uploading").exists() or not h.files_below(
        node.data_dir / "uploading"
    )
    # A merge each time: those of the snapshots that are gone have gone with them.
    segments = {key.split("/")[2] for key in store.keys("kept") if key.startswith("segments/")}
    assert len(segments) == 2
    made = told("backup", "--to", tmp_path / "b", node=node)
    assert told("verify", made["path"])[0]["counts"]["memories"] == 240
    node.stop()
    made = told("backup", "--to", store.address("stopped"), "--data-dir", node.data_dir)
    assert told("verify", made["path"])[0]["counts"]["memories"] == 240
    assert SECRET not in node.log_file.read_text()


def test_a_node_killed_in_the_middle_of_sending_leaves_a_whole_snapshot_or_none(
    make_node: MakeNode, store: ObjectStore
) -> None:
    place = store.address("killed")
    node = make_node(storage__snapshot_dir=place, storage__snapshot_keep=2).start()
    draw = random.Random(5)
    h.fill(node, range(2_000))
    node.maintain(seal_min_rows=1)
    cut_off = 0
    for n in range(4):
        before = store.keys("killed")
        call = node.admin().TakeSnapshot.future(admin_pb.TakeSnapshotRequest(), timeout=30)
        until(
            lambda call=call, before=before: call.done() or store.keys("killed") != before,  # type: ignore[misc]
            30,
            "something to be sent",
        )
        time.sleep(draw.random() * 0.03)
        node.kill()
        with contextlib.suppress(grpc.RpcError):
            call.result()
        there = {key.partition("/")[0] for key in store.keys("killed")}
        whole = {key.partition("/")[0] for key in store.keys("killed") if "snapshot.json" in key}
        cut_off += bool(there - whole - {"segments"})
        assert all(v["sound"] for v in (told("verify", place) if whole else []))
        node.start()
        until(
            lambda whole=whole: names(store, "killed") - {"segments"} == whole,  # type: ignore[misc]
            30,
            "what was broken off to be removed",
        )
        h.fill(node, range(10_000 + 100 * n, 10_000 + 100 * n + 50))
        node.maintain(seal_min_rows=1, merge_all=True)
    h.tell(f"{cut_off} of 4 were cut off")
    take(node)
    assert told("verify", place)[-1]["counts"]["memories"] == 2_200


def test_a_store_that_is_down_fails_the_snapshot_and_nothing_else(
    make_node: MakeNode, store: ObjectStore
) -> None:
    place = store.address("down")
    node = make_node(storage__snapshot_dir=place).start()
    h.fill(node, range(20))
    take(node)
    store.stop()
    try:
        with pytest.raises(grpc.RpcError) as caught:
            take(node)
        code, reason, _hint = h.error_info(caught.value)
        assert (code, reason) == (grpc.StatusCode.UNAVAILABLE, "SNAPSHOT_FAILED")
        assert "is down: it does not answer" in str(caught.value)
        health = r.health(node)
        assert health.ready
        assert any("the last snapshot failed" in text for text in health.reasons)
        h.fill(node, range(20, 40))
        done = memsvc("verify", place)
        assert done.returncode == 1
        assert "is down: it does not answer [SNAPSHOT_STORE_DOWN]" in done.stderr
        # Also one that is started while it is down.
        node.stop()
        node.start()
        until(lambda: any("failed" in t for t in r.health(node).reasons), 30, "it to be told")
        h.fill(node, range(40, 60))
    finally:
        store.start()
    assert told("verify", take(node).path)[0]["counts"]["memories"] == 60
    assert not r.health(node).reasons


@pytest.mark.parametrize(
    ("bucket", "given", "said"),
    [
        ("nobodys", {}, "there is no bucket 'nobodys'"),
        ("backups", {"secret": "another-secret"}, "the credentials may not"),
        ("backups", {"key": "", "secret": ""}, "no credentials are set"),
    ],
)
def test_a_refusal_is_told_in_plain_words_and_without_the_secret(
    make_node: MakeNode, running: ObjectStore, bucket: str, given: dict[str, str], said: str
) -> None:
    place = running.address("refused", bucket)
    with credentials(**given):
        node = make_node(storage__snapshot_dir=place).start()
        h.fill(node, range(5))
        with pytest.raises(grpc.RpcError) as caught:
            take(node)
        commands = [memsvc("verify", place), memsvc("backup", "--to", place, node=node)]
        health = r.health(node)
    assert said in str(caught.value)
    assert health.ready
    assert any(said in reason for reason in health.reasons)
    for done in commands:
        assert done.returncode == 1
        assert said in done.stderr
        assert "Traceback" not in done.stderr
    told_anywhere = node.log_file.read_text() + "".join(done.stderr for done in commands)
    assert not given.get("secret") or given["secret"] not in told_anywhere


def test_what_is_forgotten_leaves_the_store_in_time(
    make_node: MakeNode, store: ObjectStore
) -> None:
    place = store.address("erased")
    settings: dict[str, Any] = {"lifecycle__purge_within_hours": 0.002}
    node = make_node(storage__snapshot_dir=place, **settings).start()
    (gone,) = h.write(node, [h.memory(1, "the quokka is secret")]).results
    h.fill(node, range(10, 30))
    node.maintain(seal_min_rows=1)
    take(node)

    def held() -> bool:
        return any(b"quokka" in data for data in store.contents("erased"))

    assert held()
    h.forget(node, [gone.id])
    until(lambda: not held(), 60, "the text to leave the object store")
    until(lambda: bool(told_or_nothing(place)), 60, "a snapshot without it")
    assert told("verify", place)[-1]["counts"]["memories"] == 20


def told_or_nothing(place: str) -> list[Any]:
    """What verify tells, nothing while there is no snapshot."""
    done = memsvc("verify", place, "--json")
    return told("verify", place) if done.returncode == 0 else []


def test_a_replica_takes_snapshots_of_its_own_beside_those_of_its_primary(
    make_node: MakeNode, store: ObjectStore, tmp_path: Path
) -> None:
    place = store.address("both")
    primary = r.make_primary(make_node, storage__snapshot_dir=place, storage__snapshot_keep=1)
    primary.start()
    h.fill(primary, range(50))
    replica = r.make_replica(
        make_node, primary, storage__snapshot_dir=place, storage__snapshot_keep=1
    ).start()
    r.level(primary, replica)
    mine = take(primary)
    for _ in range(2):
        its = take(replica)
    assert [v["path"] for v in told("verify", place)] == [mine.path]
    assert (replica.data_dir / "node_id").read_text().strip() in its.path
    primary.stop()
    replica.stop()
    assert told("restore", its.path, "--to", tmp_path / "r")["memories"] == 50
    restored = make_node("restored", data_dir=tmp_path / "r").start()
    assert contents(restored) and len(contents(restored)) == 50


def test_segment_files_that_another_primary_removed_while_they_were_sent_are_sent_again(
    make_node: MakeNode, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A primary that was cut off does not know that its successor tidies the same prefix."""
    node = make_node().start()
    h.fill(node, range(200))
    node.maintain(seal_min_rows=1)
    (made,) = place_of(told("backup", "--to", tmp_path / "backup", node=node)["path"]).snapshots()
    here, there = (place_of(store.address("two")) for _ in range(2))
    assert isinstance(here, ObjectPlace)
    write, tidied = here._write, []

    def tidy_before_the_manifest(key: str, data: bytes | bytearray) -> None:
        if key.endswith("snapshot.json"):
            there.sweep(lambda _name: False)
            tidied.append(key)
        write(key, data)

    monkeypatch.setattr(here, "_write", tidy_before_the_manifest)
    name = "20261130T101500.250Z"
    copy_snapshot(made, here, name)
    assert len(tidied) == 1
    (found,) = there.snapshots()
    assert verify(found).sound
