"""From conditions to one mask, also when not every field has a column."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memsvc.domain.filters import And, Condition, Filter, Or
from memsvc.segments.numbers import test_numbers

Mask = NDArray[np.bool_]


def mask_mutable(
    condition: Condition,
    status: NDArray[np.integer[Any]],
    ts: NDArray[np.int64],
    importance: NDArray[np.float32],
) -> Mask | None:
    """Which rows pass a condition on status, ts (UTC ms) or stored importance, bool (n,);
    None for other fields. The arrays have shape (n,); every row has the three fields.

    Importance is compared as the float64 with the value of the stored float32, as everywhere.
    """
    if condition.field == "status":
        return _status(condition, status)
    if condition.field == "ts":
        return test_numbers(ts.astype(np.int64, copy=False), condition.test)
    if condition.field == "importance":
        return test_numbers(importance.astype(np.float64), condition.test)
    return None


def _status(condition: Condition, status: NDArray[np.integer[Any]]) -> Mask:
    # Status numbers fit a byte: a table of 256 answers instead of a comparison for each row.
    table = test_numbers(np.arange(256, dtype=np.int64), condition.test)
    return np.asarray(table[status])


class _Belief(NamedTuple):
    """Which rows may pass, and which do for certain; the same array when all is known."""

    possible: Mask
    certain: Mask


def evaluate(
    node: Filter | None, get_mask: Callable[[Condition], Mask | None], count: int
) -> tuple[Mask, bool]:
    """The rows that pass a filter, bool (count,), and whether that is exact.

    ``get_mask`` gives a condition's mask, or None when it cannot tell. Then rows may be
    included of which it is not certain that they pass, never the other way round, and the
    caller has to test the records of those included. The mask may be shared: do not write.
    """
    if node is None:
        return np.ones(count, np.bool_), True
    belief = _evaluate(node, get_mask, count)
    if belief.possible is belief.certain:
        return belief.possible, True
    return belief.possible, not bool((belief.possible > belief.certain).any())


def _evaluate(node: Filter, get_mask: Callable[[Condition], Mask | None], count: int) -> _Belief:
    if isinstance(node, Condition):
        mask = get_mask(node)
        if mask is None:
            return _Belief(np.ones(count, np.bool_), np.zeros(count, np.bool_))
        return _Belief(mask, mask)
    if isinstance(node, And | Or):
        combine = np.logical_and if isinstance(node, And) else np.logical_or
        inner = [_evaluate(n, get_mask, count) for n in node.filters]
        possible = _fold(combine, [b.possible for b in inner], count)
        if all(b.possible is b.certain for b in inner):
            return _Belief(possible, possible)
        return _Belief(possible, _fold(combine, [b.certain for b in inner], count))
    found = _evaluate(node.filter, get_mask, count)
    possible = ~found.certain
    if found.possible is found.certain:
        return _Belief(possible, possible)
    return _Belief(possible, ~found.possible)


def _fold(combine: np.ufunc, masks: list[Mask], count: int) -> Mask:
    if not masks:
        # As filters.matches: all of nothing is true, any of nothing false.
        return np.full(count, bool(combine.identity))
    result = masks[0]
    for mask in masks[1:]:
        result = combine(result, mask)
    return result
