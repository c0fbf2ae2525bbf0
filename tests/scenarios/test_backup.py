"""Backup and restore of running, killed and crowded nodes, by the commands people use."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from memsvc.admin.v1 import admin_service_pb2 as admin_pb
from memsvc.v1 import memory_service_pb2 as pb
from tests.cli.live import Answer, run_here
from tests.scenarios import harness as h
from tests.scenarios.disks import fill_disk, small_disk

MakeNode = Callable[..., h.Node]


def memsvc(*arguments: object, node: h.Node | None = None) -> Answer:
    """Runs a command to its end."""
    more = ["--address", f"127.0.0.1:{node.port}"] if node else []
    return run_here(*map(str, arguments), *more)


COMMAND = [sys.executable, "-m", "memsvc.cli"]


def told(*arguments: object, node: h.Node | None = None) -> Any:
    """What a command that succeeds tells as JSON."""
    done = memsvc(*arguments, "--json", node=node)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def number_of(position: str) -> int:
    """The log position in its opaque form."""
    found: int = struct.unpack(
        ">B8sQQ", base64.urlsafe_b64decode(position + "=" * (-len(position) % 4))
    )[3]
    return found


class Writers:
    """Clients that write, update and forget, and note at which position each was done."""

    def __init__(self, node: h.Node, count: int = 3) -> None:
        self._node = node
        self._lock = threading.Lock()
        self.done: list[tuple[int, str, str | None]] = []
        """Position, id, content (None = forgotten)."""
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(count)]

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, seed: int) -> None:
        draw, mine, n = random.Random(seed), [], seed * 100_000
        while not self._stop.is_set():
            n += 1
            kind = draw.choice(["put", "put", "update", "forget"]) if len(mine) > 5 else "put"
            text = f"text {n}"
            if kind == "put":
                answer = h.write(self._node, [h.memory(n, text)])
                mine.append(answer.results[0].id)
                self._note(answer.position, mine[-1], text)
            elif kind == "update":
                one = draw.choice(mine)
                item = pb.WriteItem(update=pb.Update(id=one, content=text))
                self._note(h.write(self._node, [item]).position, one, text)
            else:
                one = mine.pop()
                self._note(h.forget(self._node, [one]).position, one, None)

    def _note(self, position: str, memory: str, content: str | None) -> None:
        with self._lock:
            self.done.append((number_of(position), memory, content))

    def at(self, position: int) -> dict[str, str]:
        """What was there at a position, but for what was forgotten by the end."""
        found: dict[str, str] = {}
        for at, memory, content in sorted(self.done):
            if content is not None and at <= position:
                found[memory] = content
        gone = {memory for _, memory, content in self.done if content is None}
        return {memory: text for memory, text in found.items() if memory not in gone}


def contents(node: h.Node) -> dict[str, str]:
    """Every visible memory and its content."""
    return {memory: hit.content for memory, hit in h.browse(node).items()}


def test_a_backup_under_writes_restores_to_any_position(
    make_node: MakeNode, tmp_path: Path
) -> None:
    node = make_node(storage__seal_rows=50).start()
    places = tmp_path / "backup"
    with Writers(node) as writers:
        made = []
        for _ in range(3):
            time.sleep(1.0)
            made.append(told("backup", "--to", places, node=node))
    last = number_of(h.write(node, [h.memory(1, "the last one")]).position)
    assert node.stop() == 0
    verdicts = told("verify", places)
    assert [v["position"] for v in verdicts] == [m["position"] for m in made]
    assert all(v["sound"] for v in verdicts)
    positions = [made[0]["position"], (made[1]["position"] + made[2]["position"]) // 2, last - 1]
    for n, position in enumerate(positions):
        target = tmp_path / f"restored-{n}"
        done = told(
            "restore", places, "--to", target, "--position", position, "--log", node.data_dir
        )
        assert done["position"] == position
        again = make_node(f"again-{n}", data_dir=target, storage__seal_rows=50).start()
        assert contents(again) == writers.at(position)
        assert again.inspect(verify=True)["damaged_found"] == 0
        h.write(again, [h.memory(7_000_000, "new")])
        assert again.stop() == 0


def test_a_stopped_node_is_backed_up_and_a_running_one_is_not_touched(
    make_node: MakeNode, tmp_path: Path
) -> None:
    node = make_node().start()
    h.fill(node, range(20))
    refused = memsvc("backup", "--to", tmp_path / "b", "--data-dir", node.data_dir)
    assert refused.returncode == 1
    assert "DATA_DIR_IN_USE" in refused.stderr
    refused = memsvc("restore", tmp_path / "b", "--to", tmp_path / "r", "--log", node.data_dir)
    assert refused.returncode == 1
    node.stop()
    made = told("backup", "--to", tmp_path / "b", "--data-dir", node.data_dir)
    assert told("verify", made["path"])[0]["counts"]["memories"] == 20
    refused = memsvc("restore", tmp_path / "b", "--to", node.data_dir)
    assert refused.returncode == 1
    assert "NOT_EMPTY" in refused.stderr


def test_verify_finds_a_flipped_byte_and_restore_refuses(
    make_node: MakeNode, tmp_path: Path
) -> None:
    node = make_node().start()
    h.fill(node, range(20))
    made = told("backup", "--to", tmp_path / "b", node=node)
    database = Path(made["path"]) / "store" / "data.mdb"
    os.chmod(database, 0o600)
    with database.open("r+b") as file:
        file.seek(20_000)
        byte = file.read(1)[0]
        file.seek(20_000)
        file.write(bytes([byte ^ 4]))
    done = memsvc("verify", tmp_path / "b")
    assert done.returncode == 1
    assert "store/data.mdb: the checksum differs" in done.stdout
    done = memsvc("restore", tmp_path / "b", "--to", tmp_path / "r")
    assert done.returncode == 1
    assert "SNAPSHOT_DAMAGED" in done.stderr
    assert not (tmp_path / "r").exists()


def test_a_node_killed_while_a_snapshot_is_taken_leaves_a_whole_one_or_none(
    make_node: MakeNode, tmp_path: Path
) -> None:
    node = make_node(storage__seal_rows=200).start()
    folder = node.data_dir / "snapshots"
    draw = random.Random(3)
    unfinished = 0
    h.fill(node, range(3_000))
    for n in range(6):
        call = node.admin().TakeSnapshot.future(admin_pb.TakeSnapshotRequest(), timeout=30)
        until = time.monotonic() + 20
        while not list(folder.glob("*.tmp")) and not call.done() and time.monotonic() < until:
            time.sleep(0.001)
        time.sleep(draw.random() * 0.01)
        node.kill()
        with contextlib.suppress(grpc.RpcError):
            call.result()
        unfinished += bool(list(folder.glob("*.tmp")))
        node.start()
        assert not list(folder.glob("*.tmp"))
        if list(folder.iterdir()):
            assert all(v["sound"] for v in told("verify", folder))
        h.fill(node, range(10_000 + 10 * n, 10_010 + 10 * n))
    h.tell(f"{unfinished} of 6 snapshots were cut off")
    made = told("backup", "--to", tmp_path / "b", node=node)
    assert told("verify", made["path"])[0]["counts"]["memories"] == 3_060


def test_a_restore_that_is_killed_is_begun_again(make_node: MakeNode, tmp_path: Path) -> None:
    node = make_node(storage__seal_rows=200).start()
    ids = h.fill(node, range(2_000))
    told("backup", "--to", tmp_path / "b", node=node)
    h.fill(node, range(2_000, 4_000), batch=5)
    h.forget(node, ids[:10])
    node.stop()
    target, work = tmp_path / "r", tmp_path / "r.restoring"
    command = ["restore", tmp_path / "b", "--to", target, "--log", node.data_dir]
    killed = 0
    for n in range(5):
        process = subprocess.Popen(
            [*COMMAND, *map(str, command)], cwd=h.REPOSITORY,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        until = time.monotonic() + 20
        while not work.exists() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.001)
        time.sleep(n * 0.02)
        process.kill()
        process.wait()
        if target.exists():
            break
        killed += 1
    h.tell(f"{killed} restores were cut off")
    assert killed
    if not target.exists():
        assert told(*command)["memories"] == 3_990
    assert not work.exists()
    again = make_node("again", data_dir=target).start()
    assert len(contents(again)) == 3_990


def test_a_full_disk_fails_the_snapshot_and_nothing_else(
    make_node: MakeNode, tmp_path: Path
) -> None:
    try:
        with small_disk(tmp_path, "tmpfs", 8) as point:
            node = make_node(storage__snapshot_dir=str(point / "snapshots")).start()
            h.fill(node, range(500))
            filler = fill_disk(point, leave=100_000)
            with pytest.raises(grpc.RpcError) as caught:
                node.admin().TakeSnapshot(admin_pb.TakeSnapshotRequest(), timeout=30)
            code, reason, _hint = h.error_info(caught.value)
            assert (code, reason) == (grpc.StatusCode.UNAVAILABLE, "SNAPSHOT_FAILED")
            assert h.files_below(point) == [filler]
            h.fill(node, range(500, 600))
            filler.unlink()
            made = node.admin().TakeSnapshot(admin_pb.TakeSnapshotRequest(), timeout=30)
            assert told("verify", made.path)[0]["counts"]["memories"] == 600
            node.close()
    except OSError as error:
        pytest.skip(f"no tmpfs can be mounted here (root is needed): {error}")


def test_what_is_forgotten_after_a_backup_is_not_in_what_is_restored(
    make_node: MakeNode, tmp_path: Path
) -> None:
    node = make_node().start()
    (gone,) = h.write(node, [h.memory(1, "the quokka is secret")]).results
    h.fill(node, range(10, 20))
    made = told("backup", "--to", tmp_path / "b", node=node)
    h.forget(node, [gone.id])
    node.stop()
    done = told(
        "restore", tmp_path / "b", "--to", tmp_path / "r",
        "--position", made["position"], "--log", node.data_dir,
    )  # fmt: skip
    assert (done["erased"], done["memories"]) == (1, 10)
    assert all(b"quokka" not in path.read_bytes() for path in h.files_below(tmp_path / "r"))
    again = make_node("again", data_dir=tmp_path / "r").start()
    assert gone.id not in contents(again)
    (repeat,) = h.write(again, [h.memory(1, "the quokka is secret")]).results
    assert repeat.outcome == pb.OUTCOME_EXISTS
