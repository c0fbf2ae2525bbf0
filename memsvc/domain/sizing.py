"""How much disk and memory a node needs for a load: a calculation, not a measurement.

The sizes are those of the files as this version writes them: the store's database (LMDB, pages of
4 KiB, see memsvc/store/DESIGN.md) and segments (memsvc/segments/DESIGN.md). A test compares them
with measured stores. Bytes everywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from memsvc.domain.limits import (
    GRAPH_DTYPES,
    MAX_ATTRIBUTE_VALUE_BYTES,
    MAX_ATTRIBUTES,
    MAX_CONTENT_BYTES,
    MAX_DIMENSION,
    MAX_M,
    MAX_SUMMARY_BYTES,
    MIN_M,
)

DAY_S: Final = 86_400
PAGE: Final = 4_096
_USABLE: Final = 4_080
"""Of a page, beside its head."""
_NODE: Final = 10
"""Of an entry of a table: its head, and its place in the page."""
_NODE_MAX: Final = 2_038
"""Larger entries get pages of their own."""

_STATE: Final = 12 + 76
_TEXT: Final = 12 + 10 + 16
"""Key, lengths and salt of a text."""
_VECTOR_KEY: Final = 14
_EXPIRY: Final = 20
_IN_ORDER: Final = 1.02
"""Small entries that come in the order of their keys fill their pages."""
_AT_RANDOM: Final = 1.9
"""Those that do not split them, which leaves them half empty at worst."""
_IDS: Final = 16 + 12
_AUDIT: Final = 16 + 8
_DEDUP: Final = 20 + 16
_LOG_EFFECT: Final = 165
"""Of a memory in an entry of many; written alone it has an entry of its own."""
_LOG_ENTRY: Final = 120
_REQUEST: Final = 90
"""Answer to a request, of one item, kept for a day."""

_LINK: Final = 4
_GRAPH_NODE: Final = 14
_BLOCK: Final = 65_536
_COLUMN: Final = 4
_COLUMNS: Final = 76 + 8 + 16 + 7 * _COLUMN
"""State, row number, id, and the codes of the fields that always have a column."""
_WORD: Final = 40
"""A different word in the list of words."""
_NEW_WORDS: Final = 40
"""Times the square root of all words of an agent are the different ones (Heaps' law)."""
_LETTERS: Final = 7
"""Bytes of a word with its space."""
_POSTING: Final = 0.75
"""For each byte of text that can be found by its words."""

_DTYPE: Final = {"f32": 4, "bf16": 2, "f16": 2, "i8": 1}
GRAPH_MIN_ROWS: Final = 4_000
"""Rows of an agent below which it has no graph."""

SERVER: Final = 220 << 20
"""Supervisor and server, before they hold any row."""
BUILDER: Final = 90 << 20
"""Each of the two builder processes, beside the graph that it builds."""
READER: Final = 60 << 20
"""Each reader process."""
TAIL_ROW: Final = 900
"""A row of a tail, beside its vector."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is to be stored. ``per_day`` memories a day, in ``agents`` of about the same size, of
    ``content``, ``summary`` and ``metadata`` bytes (dedup key, labels and attributes together),
    each with a vector of ``dimension`` numbers; ``ttl_days`` until they expire. ``hot_days``: how
    long they are searched after (lifecycle.cold_archive_after_days; 0 = for ever). The rest are
    settings of the same names."""

    per_day: float
    dimension: int
    ttl_days: float
    dtype: str = "i8"
    content: int = 2_400
    summary: int = 360
    metadata: int = 200
    agents: int = 1
    hot_days: float = 120
    m: int = 16
    purge_hours: float = 24
    snapshots: int = 3
    seal_rows: int = 5_000
    readers: int = 1
    tail_budget: int = 512 << 20
    cold_budget: int = 256 << 20
    reserve: int = 64 << 20

    def __post_init__(self) -> None:
        """Raises ValueError, which names the field."""
        for name, least, most in (
            ("per_day", 1e-9, 1e12),
            ("dimension", 1, MAX_DIMENSION),
            ("ttl_days", 1e-9, 36_500),
            ("agents", 1, 1e9),
            ("m", MIN_M, MAX_M),
            ("content", 0, MAX_CONTENT_BYTES),
            ("summary", 0, MAX_SUMMARY_BYTES),
            ("metadata", 0, 2 * MAX_ATTRIBUTES * MAX_ATTRIBUTE_VALUE_BYTES),
            ("snapshots", 0, 10_000),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise ValueError(f"{name} is {value:g}, expected {least:g} to {most:g}")
        if self.dtype not in GRAPH_DTYPES:
            raise ValueError(f"dtype is {self.dtype!r}, expected one of {', '.join(GRAPH_DTYPES)}")

    @property
    def memories(self) -> int:
        """Those that are stored at one time, the expired that wait to be erased included."""
        return math.ceil(self.per_day * (self.ttl_days + self.purge_hours / 24))

    @property
    def hot(self) -> int:
        """Of these, those in the hot tier, when none is ever recalled."""
        days = self.hot_days or self.ttl_days
        return min(self.memories, math.ceil(self.per_day * days))


@dataclass(frozen=True, slots=True)
class Row:
    """Bytes of one memory in each place."""

    texts: float
    vectors: float
    keys: float
    log: float
    requests: float
    rows: float
    copies: float
    graph: float
    words: float
    columns: float

    @property
    def database(self) -> float:
        """All of it that is in the database."""
        return self.texts + self.vectors + self.keys + self.log


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a node needs. ``disk`` and ``memory`` by what it is for; ``snapshots`` may be on another
    disk; ``yearly`` is what stays of memories that are gone: headers of the log, which is the
    audit trail. ``whole`` more memory would keep every hot file there, the float32 rows too."""

    memories: int
    hot: int
    disk: dict[str, int]
    memory: dict[str, int]
    snapshots: int
    yearly: int
    whole: int

    @property
    def disk_total(self) -> int:
        """Of storage.data_dir, without snapshots."""
        return sum(self.disk.values())

    @property
    def memory_total(self) -> int:
        """Of the machine, for this node."""
        return sum(self.memory.values())


def stored(entry: float) -> float:
    """Bytes that an entry (key and value together) takes in a table to which entries are added in
    order. LMDB splits a full page so that its last entry begins the next one."""
    node = entry + _NODE
    if node > _NODE_MAX:
        pages = math.ceil((16 + entry) / PAGE)
        return pages * PAGE + 2 * _NODE + _VECTOR_KEY
    return PAGE / max(1, _USABLE // node - 1)


def row(load: Load) -> Row:
    """Bytes of one memory of a load, as soon as an agent has some thousands of them."""
    d, text = load.dimension, load.summary or load.content
    each = load.memories / load.agents
    different = _NEW_WORDS * math.sqrt(each * text / _LETTERS)
    sealed = each >= load.seal_rows
    graph = sealed and each >= GRAPH_MIN_ROWS
    links = 2 * load.m * _LINK + (load.m + 1) * _LINK / (load.m - 1)
    return Row(
        texts=stored(_TEXT + load.content + load.summary + load.metadata),
        vectors=stored(_VECTOR_KEY + 4 * d),
        keys=(_STATE + _EXPIRY + 2 * _NODE) * _IN_ORDER
        + (_IDS + _AUDIT + _DEDUP + 3 * _NODE) * _AT_RANDOM,
        log=_LOG_EFFECT,
        requests=_REQUEST,
        rows=sealed * (4 * d * (1 + 8 / _BLOCK) + 8),
        copies=sealed * (d + 4),
        graph=graph * (_DTYPE[load.dtype] * d + _GRAPH_NODE + links),
        words=sealed * (_POSTING * text + _WORD * different / each),
        columns=sealed * _COLUMNS,
    )


def size(load: Load) -> Sizes:
    """What a node needs for a load, once it has run for as long as memories live."""
    one, count, hot = row(load), load.memories, load.hot
    segments = one.rows + one.copies + one.graph + one.words + one.columns
    largest = math.ceil(count / load.agents)
    database = count * one.database + load.per_day * one.requests
    disk = {
        "texts": count * one.texts,
        "vectors": count * one.vectors,
        "states, keys and indexes": count * one.keys,
        "log": count * one.log + load.per_day * one.requests,
        "segments: vectors (float32)": count * one.rows,
        "segments: 8-bit copies": count * one.copies,
        f"segments: graphs ({load.dtype})": count * one.graph,
        "segments: words": count * one.words,
        "segments: columns": count * one.columns,
        "room to write segments anew": largest * segments,
        "room to compact the database": database,
        "reserve for a full disk": load.reserve,
    }
    tail = min(largest, load.seal_rows) * load.agents * (4 * load.dimension + TAIL_ROW)
    memory = {
        "processes": SERVER + 2 * BUILDER + load.readers * READER,
        "recent rows (tails)": min(load.tail_budget, tail * (load.readers + 1)),
        "graphs of the hot tier": hot * one.graph,
        "words and columns of the hot tier": hot * (one.words + one.columns),
        "8-bit copies of the hot tier": hot * one.copies,
        "cold tier": min(load.cold_budget, (count - hot) * segments),
        "the largest graph, while it is built": math.ceil(hot / load.agents) * one.graph,
    }
    headers = one.keys + one.log + 2 * (_LOG_EFFECT - 40)
    return Sizes(
        count,
        hot,
        _whole(disk),
        _whole(memory),
        snapshots=math.ceil(load.snapshots * database),
        yearly=math.ceil(365 * load.per_day * headers),
        whole=math.ceil(hot * one.rows),
    )


def _whole(parts: dict[str, float]) -> dict[str, int]:
    return {name: math.ceil(value) for name, value in parts.items()}
