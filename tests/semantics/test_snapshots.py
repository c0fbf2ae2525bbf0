"""A snapshot is whole, sound and of one position, or it is not there."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from memsvc.service.snapshots import taking
from memsvc.service.snapshots.folders import FolderPlace
from memsvc.service.snapshots.manifest import SnapshotManifest, read_manifest
from memsvc.service.snapshots.places import Found
from memsvc.service.snapshots.taking import take
from memsvc.service.snapshots.verifying import verify
from memsvc.store.store import Store
from tests.semantics.harness import World, vector


def lived_in(world: World) -> None:
    """Memories of every fate, some of them in a segment."""
    ids = [world.put(summary=f"m{n}", dedup_key=f"k{n}", vector=vector(n, 1)) for n in range(40)]
    world.seal()
    world.write({"update": {"id": ids[3], "summary": "another"}})
    world.write({"vector": {"id": world.put(summary="late"), "vector": vector(1, 2)}})
    world.forget(ids=ids[7:9], mode="HARD", request_id="r1")
    world.put(("other", "agent"), summary="x")


def snapshot(world: World, name: str = "snapshot") -> tuple[Path, SnapshotManifest]:
    """A snapshot of the world now."""
    folder = world.folder.parent / f"{world.folder.name}-{name}"
    return folder, take(world.node.store, folder, now_ms=world.clock.now)


def at(folder: Path) -> Found:
    """The snapshot that a folder is."""
    (found,) = FolderPlace(folder).snapshots(strict=True)
    return found


def test_a_snapshot_is_sound_and_tells_its_position(world: World) -> None:
    lived_in(world)
    folder, manifest = snapshot(world)
    verdict = verify(at(folder))
    assert verdict.sound, verdict.problems
    assert verdict.notes == []
    facts = world.admin.inspect("", "", False, 0, "")
    assert (manifest.position, manifest.digest) == (facts["position"], facts["digest"])
    assert manifest == read_manifest(folder)
    assert verdict.counts["memories"] == facts["memories"]
    assert manifest.erased_since == world.clock.now, "the segment still has the forgotten rows"
    on_disk = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    assert on_disk == {file.path for file in manifest.files} | {"snapshot.json"}


def test_segment_files_are_shared_not_copied(world: World) -> None:
    lived_in(world)
    folder, manifest = snapshot(world)
    linked = [file for file in manifest.files if file.path.startswith("segments/")]
    assert linked
    assert all((folder / file.path).stat().st_nlink == 2 for file in linked)


def test_segments_merged_away_while_it_was_taken_are_not_missed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived_in(world)
    copy = Store.compact_copy
    copies: list[int] = []

    def copy_then_merge(store: Store, fd: int) -> None:
        if not copies:
            # Sealed now, in the copy, and merged away before its files are looked for.
            world.put(summary="new")
            world.seal()
        copy(store, fd)
        if not copies:
            world.merge()
        copies.append(fd)

    monkeypatch.setattr(Store, "compact_copy", copy_then_merge)
    folder, manifest = snapshot(world)
    assert len(copies) == 2
    assert not manifest.missing
    assert verify(at(folder)).sound
    segments = list((folder / "segments" / "00000001").iterdir())
    assert len(segments) == 1, "what was merged away is not kept"


def test_writes_go_on_while_it_is_taken(world: World) -> None:
    lived_in(world)
    stop = threading.Event()

    def work() -> None:
        n = 0
        while not stop.is_set():
            n += 1
            world.put(("busy", "agent"), summary=f"b{n}", vector=vector(n, 1))

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for n in range(5):
            folder, _ = snapshot(world, f"s{n}")
            assert verify(at(folder)).sound
    finally:
        stop.set()
        worker.join()


@pytest.mark.parametrize("part", ["store/data.mdb", "rows-1.bin", "columns.bin", "postings.bin"])
def test_a_flipped_byte_is_found(world: World, part: str) -> None:
    lived_in(world)
    folder, manifest = snapshot(world)
    (name,) = (file.path for file in manifest.files if file.path.endswith(part))
    os.chmod(folder / name, 0o600)
    with (folder / name).open("r+b") as file:
        file.seek(manifest.size // 1_000)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    verdict = verify(at(folder))
    assert verdict.problems == [f"{name}: the checksum differs"]


def test_a_missing_and_a_short_file_are_found(world: World) -> None:
    lived_in(world)
    folder, manifest = snapshot(world)
    first, second = [file.path for file in manifest.files if file.path.startswith("segments/")][:2]
    (folder / first).unlink()
    (folder / second).unlink()
    (folder / second).write_bytes(b"short")
    told = "\n".join(verify(at(folder)).problems)
    assert f"{first}: cannot be read" in told
    assert f"{second}: 5 bytes" in told


def test_a_failure_leaves_nothing_behind(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    lived_in(world)

    def full(_store: Store, fd: int) -> None:
        os.write(fd, b"x" * 4096)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Store, "compact_copy", full)
    before = sorted(world.folder.parent.iterdir())
    with pytest.raises(OSError, match="No space left"):
        snapshot(world)
    assert sorted(world.folder.parent.iterdir()) == before
    world.put(summary="still works")


def test_it_is_not_begun_without_room(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    lived_in(world)
    monkeypatch.setattr(Store, "compact_copy", lambda *_: pytest.fail("begun"))
    folder = world.folder.parent / "s"
    with pytest.raises(OSError, match="needed for a snapshot") as caught:
        take(world.node.store, folder, now_ms=0, keep_free=1 << 60)
    assert caught.value.errno == errno.ENOSPC


def test_what_a_crash_left_is_no_snapshot_and_in_nobodys_way(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived_in(world)
    left = world.folder.parent / "all" / "one.tmp"
    (left / "store").mkdir(parents=True)
    (left / "store" / "data.mdb").write_bytes(b"half")
    assert FolderPlace(left.parent).snapshots() == []
    take(world.node.store, left.parent / "one", now_ms=5)
    assert [found.name for found in FolderPlace(left.parent).snapshots()] == ["one"]
    assert verify(at(left.parent / "one")).sound
    assert not left.exists()
    with pytest.raises(FileExistsError):
        take(world.node.store, left.parent / "one", now_ms=6)
    assert taking.TRIES > 1
