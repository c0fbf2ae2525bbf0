"""What a row must reach to be among the best of all parts."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memsvc.service.search.vector import Bar

PARTS = st.lists(st.lists(st.floats(-1, 1, width=32), max_size=12), max_size=5)


@given(PARTS, st.integers(0, 12), st.floats(-1, 1, width=32))
def test_the_bar_keeps_the_best_of_all_parts(
    parts: list[list[float]], k: int, least: float
) -> None:
    bar, kept = Bar(k, least), []
    for part in parts:
        mine = np.sort(np.array(part, np.float32))[::-1][:k]
        mine = mine[mine >= bar.floor]
        bar.saw(mine)
        kept.extend(mine.tolist())
    everything = sorted((s for part in parts for s in part if s >= least), reverse=True)
    assert sorted(kept, reverse=True)[:k] == everything[:k]
