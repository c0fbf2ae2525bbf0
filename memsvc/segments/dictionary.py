"""The different values of a column, and which of them pass a test.

A column stores for each row the *code* of its value, -1 for none. A test is answered once for
each different value; the rows follow by looking their code up.

Two kinds: `SealedDictionary` over memory-mapped arrays, grouped by type and with sorted
strings, and `GrowingDictionary` in memory, which only ever appends.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memsvc.domain.filters import Equals, Exists, FilterValue, Range, Test, test_value
from memsvc.segments.numbers import Mask, Numbers, test_numbers
from memsvc.segments.sorted_strings import SortedStrings

Codes = NDArray[np.int32]


class Dictionary(ABC):
    """Values with codes 0 to size-1. Safe to read from any number of threads."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of values."""

    @abstractmethod
    def _string(self, text: str) -> int:
        """Code of a string, -1 when it is not there."""

    @abstractmethod
    def _strings(self, bounds: Range, size: int) -> Iterable[int] | slice:
        """Codes below ``size`` of the strings within bounds that are strings."""

    @abstractmethod
    def _boolean(self, value: bool) -> int:
        """Code of a truth value, -1 when it is not there."""

    @abstractmethod
    def _numbers(self) -> Iterator[tuple[Numbers, NDArray[Any] | slice]]:
        """Arrays of numbers, each with their codes."""

    @property
    @abstractmethod
    def _lists(self) -> Lists:
        """The lists of strings."""

    def passing(self, test: Test) -> Mask:
        """Which values pass: bool (size + 1,), the last for "missing" (which code -1 finds)."""
        size = self.size
        passing = np.zeros(size + 1, np.bool_)
        if isinstance(test, Exists) or test == Range():
            # A range without bounds lets every value pass, of any type.
            wanted = not isinstance(test, Exists) or test.wanted
            passing[:size] = wanted
            passing[size] = not wanted
            return passing
        # A column that grows meanwhile may have codes from ``size`` on; nobody asks for them.
        for values, codes in self._numbers():
            if isinstance(codes, slice):
                passing[codes] = test_numbers(values, test)
            else:
                passing[codes[(codes < size) & test_numbers(values, test)]] = True
        if isinstance(test, Range):
            found = self._strings(test, size)
            passing[found if isinstance(found, slice) else list(found)] = True
            return passing
        for value in (test.value,) if isinstance(test, Equals) else test.values:
            for code in self._equal(value):
                if 0 <= code < size:
                    passing[code] = True
        return passing

    def _equal(self, wanted: FilterValue) -> Iterable[int]:
        if isinstance(wanted, str):
            return (self._string(wanted), *self._lists.containing(wanted))
        if isinstance(wanted, bool):
            return (self._boolean(wanted),)
        if isinstance(wanted, tuple):
            return (self._lists.code(wanted),)
        return ()  # numbers are done all at once


class Lists:
    """Lists of strings with their codes, found by themselves and by their members."""

    def __init__(self) -> None:
        self._codes: dict[tuple[str, ...], int] = {}
        self._having: dict[str, list[int]] = {}

    def add(self, value: tuple[str, ...], code: int) -> None:
        """Adds a list that is not there yet."""
        for member in dict.fromkeys(value):
            self._having.setdefault(member, []).append(code)
        self._codes[value] = code

    def code(self, value: tuple[str, ...]) -> int:
        """Code of a list, -1 when it is not there."""
        return self._codes.get(value, -1)

    def containing(self, member: str) -> list[int]:
        """Codes of the lists with a member."""
        return self._having.get(member, [])

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        return iter(self._codes)


class SealedDictionary(Dictionary):
    """Grouped by type: strings, integers, floats, truth values, lists; codes in that order.

    ``lists`` is JSON in UTF-8, read when first needed.
    """

    def __init__(
        self,
        strings: SortedStrings,
        integers: NDArray[np.int64],
        floats: NDArray[np.float64],
        booleans: Sequence[bool],
        lists: NDArray[np.uint8],
        list_count: int,
    ) -> None:
        self._text = strings
        self._integers = integers
        self._floats = floats
        self._booleans = list(booleans)
        self._list_json = lists
        self._list_count = list_count
        self._parsed: Lists | None = None
        self._first_float = len(strings) + len(integers)
        self._first_boolean = self._first_float + len(floats)
        self._first_list = self._first_boolean + len(self._booleans)

    @property
    def size(self) -> int:
        return self._first_list + self._list_count

    def _string(self, text: str) -> int:
        return self._text.find(text)

    def _strings(self, bounds: Range, size: int) -> slice:
        low, high = 0, len(self._text)
        for bound, above, after in (
            (bounds.gt, True, True),
            (bounds.gte, True, False),
            (bounds.lt, False, False),
            (bounds.lte, False, True),
        ):
            if bound is None:
                continue
            if not isinstance(bound, str):
                return slice(0, 0)
            place = self._text.place(bound, after=after)
            if above:
                low = max(low, place)
            else:
                high = min(high, place)
        return slice(low, max(low, high))

    def _boolean(self, value: bool) -> int:
        if value not in self._booleans:
            return -1
        return self._first_boolean + self._booleans.index(value)

    def _numbers(self) -> Iterator[tuple[Numbers, slice]]:
        yield self._integers, slice(len(self._text), self._first_float)
        yield self._floats, slice(self._first_float, self._first_boolean)

    @property
    def _lists(self) -> Lists:
        parsed = self._parsed
        if parsed is None:
            parsed = Lists()
            if self._list_count:
                for offset, members in enumerate(json.loads(self._list_json.tobytes())):
                    parsed.add(tuple(members), self._first_list + offset)
            self._parsed = parsed
        return parsed


class GrowingDictionary(Dictionary):
    """Appended to by one thread while others ask. Codes are given in order of appearance."""

    def __init__(self) -> None:
        self.values: list[FilterValue] = []
        self._text: dict[str, int] = {}
        self._integers = Growing(np.dtype(np.int64))
        self._integer_codes = Growing(np.dtype(np.int32))
        self._floats = Growing(np.dtype(np.float64))
        self._float_codes = Growing(np.dtype(np.int32))
        self._known: dict[object, int] = {}
        self._members = Lists()

    @property
    def size(self) -> int:
        return len(self.values)

    def code(self, value: FilterValue) -> int:
        """The code of a value, which is added when it is new."""
        # 1, 1.0 and True are one key to a dict; the first two also to every test.
        key = (value,) if isinstance(value, bool) else value
        known = self._known.get(key)
        if known is not None:
            return known
        code = len(self.values)
        if isinstance(value, str):
            self._text[value] = code
        elif isinstance(value, tuple):
            self._members.add(value, code)
        elif isinstance(value, int) and not isinstance(value, bool):
            self._integer_codes.append(code)
            self._integers.append(value)
        elif isinstance(value, float):
            self._float_codes.append(code)
            self._floats.append(value)
        self.values.append(value)
        self._known[key] = code
        return code

    def _string(self, text: str) -> int:
        return self._text.get(text, -1)

    def _strings(self, bounds: Range, size: int) -> list[int]:
        # From the list, whose beginning never changes. A dict may not grow while it is walked,
        # and no copy of its items is one step: making a pair may collect garbage, which runs
        # anything, also the thread that appends.
        return [
            code
            for code, value in enumerate(self.values[:size])
            if isinstance(value, str) and test_value(bounds, value)
        ]

    def _boolean(self, value: bool) -> int:
        return self._known.get((value,), -1)

    def _numbers(self) -> Iterator[tuple[Numbers, NDArray[Any]]]:
        for values, codes in (
            (self._integers, self._integer_codes),
            (self._floats, self._float_codes),
        ):
            count = len(values)
            yield values.view(count), codes.view(count)

    @property
    def _lists(self) -> Lists:
        return self._members


class Growing:
    """An array that is appended to by one thread while others hold views of its beginning."""

    __slots__ = ("_buffer", "_count")

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._buffer = np.empty(16, dtype)
        self._count = 0

    @classmethod
    def filled(cls, dtype: np.dtype[Any], count: int, value: Any) -> Growing:
        """One that begins with ``count`` equal elements."""
        made = cls(dtype)
        if count:
            made._buffer = np.full(max(16, count), value, dtype)
            made._count = count
        return made

    def __len__(self) -> int:
        return self._count

    def append(self, value: Any) -> None:
        """Adds one element."""
        if self._count == len(self._buffer):
            grown = np.empty(2 * self._count, self._buffer.dtype)
            grown[: self._count] = self._buffer
            self._buffer = grown
        self._buffer[self._count] = value
        # Last: whoever reads the count finds that many elements in the buffer.
        self._count += 1

    def view(self, count: int) -> NDArray[Any]:
        """The first ``count`` elements, read-only; never changed by later appends."""
        view = self._buffer[:count].view()
        view.flags.writeable = False
        return view
