"""What a memory leaves in files: bytes of its text and of its vector in every number format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from memsvc.segments.quantise import quantise
from tests.scenarios import harness as h

LEAST_BYTES = 16
"""A pattern this long does not occur by chance."""

Patterns = dict[str, bytes]


def _bf16(numbers: np.ndarray[Any, Any], round_up: bool) -> bytes:
    bits = numbers.astype("<f4").view("<u4")
    if round_up:
        bits = bits + 0x7FFF + ((bits >> 16) & 1)
    return (bits >> 16).astype("<u2").tobytes()


def of_text(*texts: str) -> Patterns:
    """Texts as UTF-8."""
    return {f"text {text[:30]!r}": text.encode() for text in texts}


def of_vector(raw: np.ndarray[Any, Any]) -> Patterns:
    """The beginning of a vector as written, of length one, and in short formats."""
    wide = raw.astype(np.float64)
    unit = (wide / np.sqrt(wide @ wide)).astype(np.float32)
    i8 = quantise(unit[None, :])[0][0]
    return {
        "raw float32": raw.astype("<f4").tobytes()[:LEAST_BYTES],
        "unit float32": unit.astype("<f4").tobytes()[:LEAST_BYTES],
        "unit bf16": _bf16(unit, True)[:LEAST_BYTES],
        "unit bf16, cut": _bf16(unit, False)[:LEAST_BYTES],
        "unit f16": unit.astype("<f2").tobytes()[:LEAST_BYTES],
        "unit i8": i8.tobytes()[:LEAST_BYTES],
        "unit i8 of 127": np.rint(unit * 127).astype(np.int8).tobytes()[:LEAST_BYTES],
        "unit i8 of 127, cut": (unit * 127).astype(np.int8).tobytes()[:LEAST_BYTES],
    }


def found_in(folder: Path, patterns: Patterns) -> list[str]:
    """ "FILE: PATTERN" of every pattern that a file holds. Files may come and go meanwhile."""
    found = []
    for path in h.files_below(folder):
        if path.name == "lock.mdb":
            continue
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue
        found += [
            f"{path.relative_to(folder)}: {name}"
            for name, pattern in patterns.items()
            if pattern in data
        ]
    return found
