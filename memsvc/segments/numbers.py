"""Tests on arrays of numbers, exactly as ``filters.test_value`` does them one by one.

numpy would compare int64 with float64 by rounding the integers; from 2**53 on that gives
other answers than Python, so bounds are brought to the array's own kind first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from memsvc.domain.filters import Equals, Exists, FilterValue, In, Range, Test

Numbers = NDArray[np.int64] | NDArray[np.float64]
Mask = NDArray[np.bool_]

_INT64: Final = 1 << 63


def test_numbers(values: Numbers, test: Test) -> Mask:
    """Which of some present, finite numbers, int64 or float64 (n,), pass: bool (n,)."""
    if isinstance(test, Exists):
        return np.full(len(values), test.wanted)
    if isinstance(test, Equals):
        return _among(values, (test.value,))
    if isinstance(test, In):
        return _among(values, test.values)
    return _within(values, test)


# Pytest would take the name for a test when it is imported by one. (Functions may have
# attributes; their type does not say so.)
test_numbers.__test__ = False  # type: ignore[attr-defined]


def _among(values: Numbers, wanted: Iterable[FilterValue]) -> Mask:
    exact = [_same_kind(values, w) for w in wanted if _is_number(w)]
    targets = np.array([t for t in exact if t is not None], values.dtype)
    if len(targets) == 1:
        return np.asarray(values == targets[0])
    return np.isin(values, targets)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same_kind(values: Numbers, wanted: Any) -> int | float | None:
    """The number in the array's kind, None when that cannot hold it (so nothing equals it)."""
    if values.dtype.kind == "i":
        if isinstance(wanted, float) and not wanted.is_integer():
            return None
        whole = int(wanted)
        return whole if -_INT64 <= whole < _INT64 else None
    return _as_float(wanted) if _as_float(wanted) == wanted else None


def _as_float(number: int | float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _within(values: Numbers, test: Range) -> Mask:
    passing = np.ones(len(values), np.bool_)
    for bound, above, inclusive in (
        (test.gt, True, False),
        (test.gte, True, True),
        (test.lt, False, False),
        (test.lte, False, True),
    ):
        if bound is None:
            continue
        if not _is_number(bound):
            return np.zeros(len(values), np.bool_)
        limit, inclusive = _bound(values, bound, above, inclusive)
        if above:
            passing &= values >= limit if inclusive else values > limit
        else:
            passing &= values <= limit if inclusive else values < limit
    return passing


def _bound(values: Numbers, bound: Any, above: bool, inclusive: bool) -> tuple[Any, bool]:
    """A bound in the array's kind that lets the same numbers pass."""
    if values.dtype.kind == "i":
        if isinstance(bound, int) or not math.isfinite(bound):
            return bound, inclusive
        if bound.is_integer():
            return int(bound), inclusive
        # No integer equals it, so the next one in the direction that passes is let in.
        return (math.ceil(bound) if above else math.floor(bound)), True
    rounded = _as_float(bound)
    if rounded == bound:
        return rounded, inclusive
    # No float lies between the bound and its rounding.
    return rounded, (rounded > bound) == above
