"""Copies that would be taken for whole, or that would be put where they do not belong."""

from __future__ import annotations

from pathlib import Path

import pytest
import xxhash

from memsvc.domain.errors import FailedPrecondition
from memsvc.replication.v1 import replication_service_pb2 as pb
from memsvc.service.snapshots.manifest import SnapshotFile, SnapshotManifest
from replicas.copying import INCOMING, Incoming, place
from replicas.landing import BrokenOff

FILES = {
    "store/data.mdb": b"d" * 1_000,
    "segments/00000001/s1/rows-1.bin": b"r" * 2_500,
    "segments/00000001/s1/graph-1.usearch": b"g" * 10,
}


def manifest(files: dict[str, bytes] = FILES) -> SnapshotManifest:
    listed = tuple(
        SnapshotFile(name, len(data), xxhash.xxh3_128(data).hexdigest())
        for name, data in files.items()
    )
    return SnapshotManifest("a" * 32, 1, 7, "00" * 16, 0, listed)


def pieces(
    name: str = "one", *, have: dict[str, int] | None = None, files: dict[str, bytes] = FILES
) -> list[pb.CopyResponse]:
    out = [pb.CopyResponse(snapshot=name)]
    for path, data in files.items():
        for offset in range((have or {}).get(path, 0), len(data), 700):
            part = data[offset : offset + 700]
            out.append(pb.CopyResponse(path=path, offset=offset, data=part))
    return [*out, pb.CopyResponse(manifest=manifest(files).to_json().encode())]


def present(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in FILES if (folder / name).exists()}


def test_a_copy_that_is_whole_is_put_in_place(tmp_path: Path) -> None:
    assert Incoming(tmp_path).receive(pieces()).position == 7
    assert present(tmp_path) == FILES
    assert not (tmp_path / INCOMING).exists()


@pytest.mark.parametrize("count", range(1, len(pieces())))
def test_one_that_breaks_off_anywhere_goes_on_from_there(tmp_path: Path, count: int) -> None:
    with pytest.raises(BrokenOff):
        Incoming(tmp_path).receive(pieces()[:count])
    assert not present(tmp_path)
    again = Incoming(tmp_path)
    assert again.snapshot == "one"
    have = {part.path: part.bytes for part in again.parts()}
    assert sum(have.values()) == sum(len(p.data) for p in pieces()[:count])
    again.receive(pieces(have=have))
    assert present(tmp_path) == FILES


def test_the_rest_of_another_snapshot_is_not_mixed_in(tmp_path: Path) -> None:
    with pytest.raises(BrokenOff):
        Incoming(tmp_path).receive(pieces()[:4])
    other = {name: data[::-1] + b"x" for name, data in FILES.items()}
    Incoming(tmp_path).receive(pieces("two", files=other))
    assert present(tmp_path) == other


def test_a_flipped_bit_is_found_and_that_file_copied_again(tmp_path: Path) -> None:
    bad = pieces()
    bad[-2].data = b"G" + bad[-2].data[1:]
    with pytest.raises(BrokenOff, match="graph"):
        Incoming(tmp_path).receive(bad)
    again = Incoming(tmp_path)
    have = {part.path: part.bytes for part in again.parts()}
    assert "segments/00000001/s1/graph-1.usearch" not in have
    again.receive(pieces(have=have))
    assert present(tmp_path) == FILES


@pytest.mark.parametrize("path", ["../evil", "/etc/passwd", "store/../../x", "tokens.yaml"])
def test_no_file_is_put_outside_of_the_snapshot(tmp_path: Path, path: str) -> None:
    with pytest.raises(FailedPrecondition, match="outside"):
        Incoming(tmp_path).receive(pieces(files={path: b"x"}))


def test_a_piece_out_of_place_ends_the_copy(tmp_path: Path) -> None:
    extra = pb.CopyResponse(path="store/data.mdb", offset=5, data=b"x")
    with pytest.raises(BrokenOff, match="a piece for 5 came at 0"):
        Incoming(tmp_path).receive([pieces()[0], extra])


def test_a_segment_that_was_merged_away_meanwhile_is_not_put_in_place(tmp_path: Path) -> None:
    gone = pb.CopyResponse(path="segments/00000001/s0/rows-1.bin", data=b"x")
    first, *rest = pieces()
    Incoming(tmp_path).receive([first, gone, *rest])
    assert present(tmp_path) == FILES
    assert not (tmp_path / "segments/00000001/s0").exists()


def test_a_file_that_is_begun_anew_is_not_mixed_with_its_first_beginning(tmp_path: Path) -> None:
    first, *rest = pieces()
    database = [
        pb.CopyResponse(path="store/data.mdb", offset=at, data=b"x" * 500) for at in (0, 500)
    ]
    Incoming(tmp_path).receive([first, *database, *rest])
    assert present(tmp_path) == FILES


def test_placing_is_done_again_after_a_crash_in_the_middle(tmp_path: Path) -> None:
    Incoming(tmp_path / "whole").receive(pieces())
    broken = tmp_path / "broken"
    (broken / INCOMING).mkdir(parents=True)
    (tmp_path / "whole" / "segments").rename(broken / "segments")
    (tmp_path / "whole" / "store").rename(broken / INCOMING / "store")
    assert not place(broken), "not without the mark that it is whole"
    (broken / INCOMING / "PLACE").touch()
    assert place(broken)
    assert present(broken) == FILES
    assert not place(broken)
