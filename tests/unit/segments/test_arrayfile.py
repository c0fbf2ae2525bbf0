"""The container of our file formats: what was written comes back, anything else is refused."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import numpy as np
import pytest

from memsvc.segments import arrayfile
from memsvc.segments.arrayfile import ArrayFile, ArrayFileWriter
from memsvc.segments.errors import BadFile
from memsvc.segments.files import checksum_of, map_file


def write(path: Path) -> tuple[int, str]:
    with ArrayFileWriter(path, "thing", 3) as writer:
        writer.add("a", np.arange(7, dtype=np.int64))
        writer.begin("rows", np.dtype(np.float32), 5)
        for start in range(0, 10_000, 999):
            writer.append(np.full((min(999, 10_000 - start), 5), start, np.float32))
        assert writer.end() == 10_000
        writer.add("empty", np.zeros((0, 4), np.int8))
        return writer.finish({"name": "x"})


def opened(path: Path, kind: str = "thing", version: int = 3) -> ArrayFile:
    return ArrayFile(map_file(path), kind, version, check_sums=True)


def rewrite(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def test_arrays_and_meta_come_back_as_written(tmp_path: Path) -> None:
    path = tmp_path / "f"
    size, checksum = write(path)
    file = opened(path)
    assert file.meta == {"name": "x"}
    assert file.array("a").tolist() == list(range(7))
    assert file.array("rows").shape == (10_000, 5)
    assert file.array("rows")[5000, 0] == 5000 // 999 * 999
    assert file.array("empty").shape == (0, 4)
    assert file.optional("nothing") is None
    assert size == path.stat().st_size
    assert checksum == checksum_of(map_file(path))


def test_mapped_arrays_and_the_file_cannot_be_written_to(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o444
    with pytest.raises(ValueError, match="read-only"):
        opened(path).array("a")[0] = 1


def test_arrays_are_aligned_for_vector_loads(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write(path)
    for name in ("a", "rows", "rows.sums"):
        assert opened(path).array(name).ctypes.data % arrayfile.ALIGNMENT == 0


def test_a_failed_write_leaves_no_file_behind(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), ArrayFileWriter(tmp_path / "f", "thing", 3) as writer:
        writer.add("a", np.arange(7))
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_a_file_cut_at_any_length_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write(path)
    data = path.read_bytes()
    cut = tmp_path / "cut"
    for length in [*range(1, 200), *range(200, len(data), 997), len(data) - 1]:
        rewrite(cut, data[:length])
        with pytest.raises(BadFile):
            opened(cut)


def test_an_empty_or_missing_file_is_refused_not_mapped(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    for name in ("f", "none"):
        with pytest.raises(BadFile):
            opened(tmp_path / name)


def test_a_flipped_bit_outside_guarded_rows_is_refused_at_open(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write(path)
    data = bytearray(path.read_bytes())
    footer = json.loads(data[data.rindex(b'{"kind"') : -32])
    places = list(range(12)) + list(range(len(data) - 32, len(data)))
    places += range(data.rindex(b'{"kind"'), len(data) - 32, 7)
    for entry in footer["arrays"]:
        if "sum" in entry and entry["shape"][0]:
            places.append(entry["offset"])
    bad = tmp_path / "bad"
    for place in places:
        for bit in (0, 7):
            data[place] ^= 1 << bit
            rewrite(bad, data)
            with pytest.raises(BadFile):
                opened(bad)
            data[place] ^= 1 << bit


def test_another_kind_version_or_container_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write(path)
    with pytest.raises(BadFile, match="expected other 3"):
        opened(path, kind="other")
    with pytest.raises(BadFile, match="expected thing 4"):
        opened(path, version=4)
    data = bytearray(path.read_bytes())
    data[8] = 2
    rewrite(tmp_path / "new", data)
    with pytest.raises(BadFile, match="container format is 2"):
        opened(tmp_path / "new")


def test_a_sound_file_of_another_segment_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write(path)
    with pytest.raises(BadFile, match="name is 'x', expected 'y'"):
        opened(path).require(name="y")
    opened(path).require(name="x")
