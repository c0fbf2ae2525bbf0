"""A snapshot that replicas read while it is taken, each at its own speed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from memsvc.service.bootstraps import Bootstrap, Bootstraps, Piece
from memsvc.service.snapshots.manifest import DATABASE, checksum_of
from memsvc.store.store import Store
from tests.semantics.harness import World, vector
from tests.waiting import until

PIECE = 1_000


@pytest.fixture
def bootstraps(world: World) -> Iterator[Bootstraps]:
    for n in range(40):
        world.put(summary=f"m{n}", vector=vector(n, 1))
    world.seal()
    found = Bootstraps(world.node.store)
    yield found
    found.stop()


def read(bootstrap: Bootstrap, have: dict[str, int] | None = None) -> list[Piece]:
    """Everything there is to read."""
    return list(bootstrap.pieces(have or {}, PIECE, lambda: False))


def put_together(pieces: list[Piece], folder: Path) -> Path:
    """The files that pieces make."""
    for piece in pieces:
        path = folder / piece.path
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("r+b" if piece.offset else "wb") as file:
            file.seek(piece.offset)
            file.write(piece.data)
    return folder


def whole(folder: Path, bootstrap: Bootstrap) -> bool:
    """Whether a folder has all files of the snapshot as they should be."""
    assert bootstrap.manifest is not None
    return all(
        checksum_of(folder / file.path) == file.checksum for file in bootstrap.manifest.files
    )


def test_segments_are_read_before_the_database_is_copied(
    bootstraps: Bootstraps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, read_first = Store.compact_copy, threading.Event()

    def copy_later(store: Store, fd: int) -> None:
        assert read_first.wait(30)
        copy(store, fd)

    monkeypatch.setattr(Store, "compact_copy", copy_later)
    with bootstraps.use("", 0) as bootstrap:
        pieces = []
        for piece in bootstrap.pieces({}, PIECE, lambda: False):
            pieces.append(piece)
            assert piece.path != DATABASE or read_first.is_set()
            read_first.set()
        assert whole(put_together(pieces, tmp_path), bootstrap)


def test_a_database_that_is_copied_anew_is_read_anew(
    bootstraps: Bootstraps, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment came and went while it was copied; the reader has a part of that copy."""
    copy, was_read = Store.compact_copy, threading.Event()
    copies = []

    def copy_then_grow(store: Store, fd: int) -> None:
        if not copies:
            world.put(summary="new")
            world.seal()
        copy(store, fd)
        if not copies:
            world.put(summary="newer")
            world.seal()  # which grows the one that was new
            assert was_read.wait(30)
        copies.append(fd)

    monkeypatch.setattr(Store, "compact_copy", copy_then_grow)
    with bootstraps.use("", 0) as bootstrap:
        pieces = []
        for piece in bootstrap.pieces({}, PIECE, lambda: False):
            pieces.append(piece)
            if piece.path == DATABASE:
                was_read.set()
        assert len(copies) == 2
        assert [p.offset for p in pieces if p.path == DATABASE].count(0) == 2
        assert whole(put_together(pieces, tmp_path), bootstrap)


def test_one_that_comes_back_gets_the_rest_of_the_same(
    bootstraps: Bootstraps, tmp_path: Path
) -> None:
    with bootstraps.use("", 0) as bootstrap:
        pieces = read(bootstrap)
    for cut in (1, len(pieces) // 2, len(pieces)):
        mine = pieces[:cut]
        have: dict[str, int] = {}
        for piece in mine:
            have[piece.path] = piece.offset + len(piece.data)
        with bootstraps.use(bootstrap.name, 0) as again:
            assert again is bootstrap
            folder = put_together([*mine, *read(again, have)], tmp_path / str(cut))
            assert whole(folder, again)


def test_two_that_begin_together_share_one(bootstraps: Bootstraps) -> None:
    with bootstraps.use("", 0) as one, bootstraps.use("a name of long ago", 0) as other:
        assert one is other
        assert read(one) == read(other)


def test_a_failure_is_told_to_who_reads_and_the_next_one_is_another(
    bootstraps: Bootstraps, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:

        def full(_store: Store, _fd: int) -> None:
            raise OSError(28, "No space left on device")

        broken.setattr(Store, "compact_copy", full)
        with bootstraps.use("", 0) as bootstrap, pytest.raises(OSError, match="No space left"):
            read(bootstrap)
        assert not bootstrap.folder.exists()
    with bootstraps.use(bootstrap.name, 0) as next_one:
        assert next_one is not bootstrap
        assert read(next_one)


def test_one_in_the_making_is_given_up_when_the_node_stops(
    bootstraps: Bootstraps, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, begun = Store.compact_copy, threading.Event()

    def copy_when_stopping(store: Store, fd: int) -> None:
        begun.set()
        until(bootstraps._stopping.is_set, 30, "the node to stop")
        copy(store, fd)

    monkeypatch.setattr(Store, "compact_copy", copy_when_stopping)
    with bootstraps.use("", 0) as bootstrap:
        assert begun.wait(30)
        bootstraps.stop()
        assert bootstrap.failed
        assert not bootstrap.folder.exists()


def test_one_that_may_hold_what_must_be_erased_is_no_longer_read(bootstraps: Bootstraps) -> None:
    with bootstraps.use("", 0) as bootstrap:
        pieces = bootstrap.pieces({}, PIECE, lambda: False)
        next(pieces)
        bootstraps.tick(purge_s=0.0)
        with pytest.raises(InterruptedError, match="too old"):
            list(pieces)
        until(lambda: not bootstrap.folder.exists(), 30, "its files to be gone")
        with bootstraps.use(bootstrap.name, 0) as another:
            assert another is not bootstrap
            assert read(another)
