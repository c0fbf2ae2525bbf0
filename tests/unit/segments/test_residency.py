"""Pages of mapped files: what is in memory, and letting go of it."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from memsvc.segments import residency
from memsvc.segments.files import map_twice
from memsvc.segments.residency import MappedFile, resident_bytes

CHUNK = 2 << 20
"""The kernel keeps pages together in blocks of up to this size, and drops none in part."""
SIZE = 3 * CHUNK + 100


@pytest.fixture
def mapped(tmp_path: Path) -> MappedFile:
    """A file with two mappings, all of it in memory and on disk."""
    path = tmp_path / "rows"
    with path.open("wb") as file:
        file.write(bytes(range(256)) * (SIZE // 256 + 1))
        file.truncate(SIZE)
        file.flush()
        os.fsync(file.fileno())
    maps = map_twice(path)
    for one in maps:
        assert len(bytes(one)) == SIZE
    return MappedFile(path, "rows", 1, maps)


def test_what_was_read_is_in_memory_and_what_is_let_go_of_is_not(mapped: MappedFile) -> None:
    assert mapped.look() == SIZE and mapped.missing == 0
    assert mapped.drop(SIZE) == SIZE
    assert mapped.look() == 0 and mapped.missing == 1
    # It is read again from disk.
    assert bytes(mapped.maps[0])[255] == 255
    assert mapped.look() > 0


def test_no_more_is_let_go_of_than_asked_and_the_next_time_goes_on(
    mapped: MappedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residency, "CHUNK_BYTES", CHUNK)
    assert mapped.drop(1) == CHUNK
    assert resident_bytes(mapped.maps[0], 0, CHUNK) == 0
    assert mapped.drop(CHUNK + 1) == 2 * CHUNK
    assert mapped.look() == mmap.PAGESIZE
    assert mapped.drop(SIZE) == SIZE - 3 * CHUNK
    assert mapped.look() == 0


def test_a_file_that_was_removed_is_left_to_its_readers(mapped: MappedFile) -> None:
    mapped.path.unlink()
    assert mapped.drop(SIZE) == 0
    assert bytes(mapped.maps[1])[255] == 255
