"""Turns of one conversation, put together to windows.

Windows lie at fixed places on the count of turns (see Windowing), so which turns a chunk holds
depends on their seq alone: not on where ingestion began, on how often it was flushed, or on
where it was killed. A window is given out when it is full, or earlier when it is asked for; it
is then given out again with more turns, and begins with the same turn.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence

from memsvc.client.ingest.chunks import Turn
from memsvc.client.ingest.settings import Windowing

Numbered = tuple[int, Turn]
"""A turn with its seq."""
Window = list[Numbered]


class Windows:
    """The last turns of a conversation. Not safe for threads."""

    def __init__(self, windowing: Windowing, turns: Iterable[Numbered] = ()) -> None:
        """``turns`` as ``open`` gave them, to go on where another process ended."""
        self._windowing = windowing
        given = sorted(turns, key=_seq)
        self._turns = [one for one in given if one[1].text]
        self._greatest = max((seq for seq, _ in given), default=-1)
        # Of turns of another process it is not known; giving them out twice does no harm.
        self._all_given = not self._turns

    @property
    def next_seq(self) -> int:
        """The seq of a turn that comes without one."""
        return self._greatest + 1

    @property
    def open(self) -> Sequence[Numbered]:
        """Turns that windows to come may hold too; and, without a text, the last one where it
        stood alone, so that counting goes on behind it."""
        last = self._turns[-1][0] if self._turns else -1
        alone = [(self._greatest, Turn("", seq=self._greatest))] if self._greatest > last else []
        return (*self._turns, *alone)

    def add(self, seq: int, turn: Turn | None) -> list[Window]:
        """The windows that are full now, or fuller. None for a turn that stands alone: it is
        counted, and part of no window. A turn that is held already changes nothing; one from
        before what is held begins anew there, after what was held has been given out."""
        if turn and any(
            (at, one.text, one.source) == (seq, turn.text, turn.source) for at, one in self._turns
        ):
            return []
        found: list[Window] = []
        if self._last_end(seq) < self._greatest:
            found = self.rest()
            self._turns, self._greatest = [], -1
        before, self._greatest = self._greatest, max(self._greatest, seq)
        if turn:
            insort(self._turns, (seq, turn), key=_seq)
            self._all_given = False
        for block in self._blocks():
            end = self._end(block)
            is_news = end > before or (turn and block * self._windowing.stride <= seq <= end)
            if is_news and end <= self._greatest:
                found += self._of_block(block)
        self._turns = [one for one in self._turns if self._last_end(one[0]) >= self._greatest]
        return found

    def rest(self) -> list[Window]:
        """The windows that are not full, as far as there are turns that no call gave out."""
        if self._all_given:
            return []
        self._all_given = True
        blocks = [block for block in self._blocks() if self._end(block) > self._greatest]
        return [window for block in blocks for window in self._of_block(block)]

    def let_go(self) -> None:
        """Holds no turn any more, and goes on counting."""
        self._turns, self._all_given = [], True

    def _blocks(self) -> Iterable[int]:
        """Numbers of the windows that hold a turn, in order."""
        turns, stride = self._windowing.turns, self._windowing.stride
        numbers = {
            block
            for seq, _ in self._turns
            for block in range(max(0, -((turns - 1 - seq) // stride)), seq // stride + 1)
        }
        return sorted(numbers)

    def _of_block(self, block: int) -> list[Window]:
        """Its turns, those of each source by themselves: a memory has one. None of those that
        the window before holds all of."""
        held = [one for one in self._turns if block * self._windowing.stride <= one[0]]
        by_source: dict[str, Window] = {}
        for one in held:
            if one[0] <= self._end(block):
                by_source.setdefault(one[1].source, []).append(one)
        before = self._end(block - 1) if block else -1
        return [window for window in by_source.values() if window[-1][0] > before]

    def _end(self, block: int) -> int:
        return block * self._windowing.stride + self._windowing.turns - 1

    def _last_end(self, seq: int) -> int:
        """Where the last window ends that holds a turn."""
        return self._end(seq // self._windowing.stride)


def _seq(numbered: Numbered) -> int:
    return numbered[0]
