"""Bytes of vectors: the same whatever array they came in."""

from __future__ import annotations

import numpy as np

from memsvc.service.resolving import vector_bytes

NUMBERS = [1.0, -2.5, 3.0, 4.0]
RAW = np.array(NUMBERS, "<f4").tobytes()


def test_bytes_that_came_are_not_copied() -> None:
    assert vector_bytes(np.frombuffer(RAW, "<f4")) is RAW


def test_any_other_array_gives_the_bytes_of_its_numbers() -> None:
    assert vector_bytes(np.array(NUMBERS, np.float32)) == RAW
    assert vector_bytes(np.frombuffer(np.array(NUMBERS, ">f4").tobytes(), ">f4")) == RAW
    assert (
        vector_bytes(np.frombuffer(RAW, "<f4")[::-1]) == RAW[12:] + RAW[8:12] + RAW[4:8] + RAW[:4]
    )
    assert (
        vector_bytes(np.frombuffer(RAW * 2, "<f4")[::2])
        == np.array([1.0, 3.0, 1.0, 3.0], "<f4").tobytes()
    )
    assert vector_bytes(np.frombuffer(RAW, "<f4")[:3]) == RAW[:12]
