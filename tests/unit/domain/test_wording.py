"""Numbers in sentences: one of a thing must not read as many."""

from __future__ import annotations

import pytest

from memsvc.domain.wording import counted


@pytest.mark.parametrize(
    ("number", "thing", "text"),
    [
        (0, "row", "0 rows"),
        (1, "row", "1 row"),
        (2, "row", "2 rows"),
        (1, "memory", "1 memory"),
        (4, "day", "4 days"),
        (12_000, "memory", "12,000 memories"),
    ],
)
def test_one_is_not_told_as_many(number: int, thing: str, text: str) -> None:
    assert counted(number, thing) == text
