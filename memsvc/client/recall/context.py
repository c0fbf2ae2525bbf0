"""The text that is put before a model: whole summaries, one a line, within a budget of tokens."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from memsvc.client.days import split_day
from memsvc.client.recall.tokens import TokenCounter

HANDLE_CHARACTERS: Final = 4
MAX_HANDLES: Final = 10_000
"""Handles that are remembered; the one that was given longest ago is forgotten first."""


@dataclass(frozen=True, slots=True)
class ContextItem:
    """One memory, or recent turn, in a context. Times in UTC ms."""

    id: str
    """For ``full_text`` and ``forget``. Recent turns have ids of their own, "recent:" and a
    number."""
    handle: str
    """A short name of it in the text of the context; ``full_text`` takes it too."""
    summary: str
    ts: int
    """When it was said; 0 = unknown."""
    topic: str = ""
    session: str = ""
    similarity: float | None = None
    """Cosine to the query; None without vectors."""
    score: float = 0.0
    """What the order is by."""
    tokens: int = 0
    """What it takes of the budget."""
    recent: bool = False
    """Whether it is a turn of the last minutes and not a memory."""


@dataclass(frozen=True, slots=True)
class Context:
    """What an agent remembers about an input."""

    text: str = ""
    """Ready to be put before a model: one line an item. Empty when there is nothing."""
    items: tuple[ContextItem, ...] = ()
    """Best first."""
    tokens: int = 0
    """What the items take of the budget, as counted; the text never takes more."""
    degraded: str = ""
    """Why this may not be all, in upper snake case, for example UNREACHABLE; "" = it is all. With
    nobody to ask only recent turns can be here."""
    query: str = ""
    """What was searched for."""

    def __bool__(self) -> bool:
        """Whether there is anything in it."""
        return bool(self.items)


def line(item: ContextItem) -> str:
    """An item as one line of the context, with its handle and its day: the one that its summary
    begins with, else that of its time (UTC)."""
    day, said = split_day(item.summary)
    if not day and item.ts > 0:
        day = f"{datetime.fromtimestamp(item.ts / 1_000, UTC):%Y-%m-%d}"
    return f"[{item.handle} {day}] {one_line(said)}" if day else f"[{item.handle}] {one_line(said)}"


def one_line(text: str) -> str:
    """A text without line breaks: a memory must not look like several, or like what follows."""
    return " ".join(text.split())


def item_tokens(item: ContextItem, count: TokenCounter, overhead: int) -> int:
    """What an item takes of the budget: its summary and the overhead, or its whole line where
    that is more."""
    written = line(item) + "\n"
    return max(count(one_line(item.summary)) + overhead, count(written))


def build(
    items: Sequence[ContextItem],
    count: TokenCounter,
    budget: int,
    *,
    degraded: str = "",
    query: str = "",
    render: Callable[[ContextItem], str] = line,
) -> Context:
    """The context of items that were chosen, best first. ``budget`` 0 = no limit.

    Counters need not be additive; so what was added up is checked on the whole text, and the
    last items go if it is too long after all.
    """
    kept = list(items)
    while kept:
        text = "\n".join(map(render, kept))
        tokens = max(sum(item.tokens for item in kept), count(text))
        if not budget or tokens <= budget:
            return Context(text, tuple(kept), tokens, degraded, query)
        kept.pop()
    return Context(degraded=degraded, query=query)


class Handles:
    """Short names of ids, the same for the same id for as long as it is remembered. Safe to use
    from several threads."""

    def __init__(self, characters: int = HANDLE_CHARACTERS) -> None:
        self._characters = characters
        self._lock = threading.Lock()
        self._ids: OrderedDict[str, str] = OrderedDict()
        self._handles: dict[str, str] = {}

    def of(self, id_: str) -> str:
        """A handle: the end of the id, which is random, as long as needed to be its own."""
        with self._lock:
            known = self._handles.get(id_)
            if known is not None:
                self._ids.move_to_end(known)
                return known
            plain = id_.replace("-", "")
            length = self._characters
            while (handle := plain[-length:]) in self._ids and length < len(plain):
                length += 1
            self._ids[handle] = id_
            self._handles[id_] = handle
            while len(self._ids) > MAX_HANDLES:
                _, gone = self._ids.popitem(last=False)
                self._handles.pop(gone, None)
            return handle

    def id_of(self, text: str) -> str:
        """The id of a handle; what is none is returned as it is, being an id."""
        with self._lock:
            return self._ids.get(text, text)
