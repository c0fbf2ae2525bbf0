"""What goes in (turns), and what becomes of it (chunks)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final

from memsvc.client.messages import LAST_SEQ
from memsvc.domain.limits import MAX_ATTRIBUTES
from memsvc.domain.types import AttributeValue, Metadata, NewMemory, Vector

MAX_TURN_ATTRIBUTES: Final = MAX_ATTRIBUTES - 1


@dataclass(frozen=True, slots=True)
class Turn:
    """Something that was said, or one text of another kind."""

    text: str
    role: str = ""
    """"user", "assistant", "tool"..."""
    speaker: str = ""
    """Name to stand before the text instead of the role."""
    session: str = ""
    seq: int | None = None
    """Number of the turn within its session, from 0, one more for each turn, the same whenever
    the same data is given again. None = one more than the last one of the session, as far as is
    known here; ``ts`` then tells apart what has the same number and text."""
    ts: int | None = None
    """When it was said, UTC ms. None = now."""
    importance: float | None = None
    """0 to 1; None = by rules."""
    topic: str = ""
    """Empty = by keywords."""
    source: str = ""
    category: str = ""
    memory_type: str = ""
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    """At most 31; ``last_seq`` is taken. A chunk has those of all its turns, of equal names the
    last, as far as there is room."""
    anew: bool = False
    """For ``add_text``: stored also where the same was forgotten or expired before, up to 8 times.
    For what somebody asks to have remembered now; what is imported again stays forgotten."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """What becomes one memory: some turns in a row, or a piece of a long one."""

    key: str
    """Its dedup_key."""
    content: str
    summary: str
    session: str
    seq: int
    last_seq: int
    ts: int
    importance: float
    role: str = ""
    topic: str = ""
    source: str = ""
    category: str = ""
    memory_type: str = ""
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    windowed: bool = True
    """Made of turns that other chunks may hold too; not a piece of a text."""
    anew: bool = False
    """As of its text."""

    def memory(self, vector: Vector | None) -> NewMemory:
        """As an item of a Write."""
        return NewMemory(
            content=self.content,
            summary=self.summary,
            dedup_key=self.key,
            vector=vector,
            metadata=self.metadata(),
        )

    def metadata(self) -> Metadata:
        """What is known about it beside its text."""
        several = {LAST_SEQ: self.last_seq} if self.last_seq > self.seq else {}
        return Metadata(
            seq=self.seq,
            role=self.role,
            ts=self.ts,
            importance=self.importance,
            source=self.source,
            topic=self.topic,
            category=self.category,
            memory_type=self.memory_type,
            attributes={**self.attributes, **several},
        )

    def overlaps(self, session: str, source: str, seq: int, last_seq: int) -> bool:
        """Whether it has turns in common with another stretch of a conversation."""
        return (
            self.windowed
            and self.session == session
            and self.source == source
            and self.seq <= last_seq
            and seq <= self.last_seq
        )


def dedup_key(session: str, seq: int, text: str) -> str:
    """session:seq:sha256(text)[:16], at most 512 bytes with a session of 256. The text is that
    of the *first* turn of a chunk, so that a chunk keeps its key while turns are added to it."""
    return f"{session}:{seq}:{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def holds(content: str, part: str) -> bool:
    """Whether all lines of a text are in another one, in order."""
    lines = iter(content.split("\n"))
    return all(line in lines for line in part.split("\n"))


def grows(stored: str, content: str) -> bool:
    """Whether the content is what is stored and more."""
    return content != stored and holds(content, stored)


def told_apart(chunk: Chunk, stored: str) -> Chunk:
    """A chunk of another conversation than ``stored``, which has the same key: under a key of
    its own.

    Two conversations of one name that are counted from 0 may both begin with "Hi". The key is
    then made of all up to the line in which they part, which growth does not change either.
    """
    mine, theirs = chunk.content.split("\n"), stored.split("\n")
    alike = next((n for n, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), 0)
    text = "\n".join(mine[: alike + 1])
    return replace(chunk, key=dedup_key(chunk.session or chunk.source, chunk.seq, text))


def dumped(value: Turn | Chunk) -> str:
    """As JSON, for a file."""
    return json.dumps(asdict(value), ensure_ascii=False, separators=(",", ":"))


def turn_from(text: str) -> Turn:
    """What ``dumped`` made of a turn."""
    return Turn(**_fields(Turn, text))


def chunk_from(text: str) -> Chunk:
    """What ``dumped`` made of a chunk."""
    return Chunk(**_fields(Chunk, text))


def _fields(kind: type[Turn | Chunk], text: str) -> dict[str, Any]:
    """Its fields; those that a later version added are passed over."""
    known = {one.name for one in fields(kind)}
    found = {name: value for name, value in json.loads(text).items() if name in known}
    found["attributes"] = {
        name: tuple(one) if isinstance(one, list) else one
        for name, one in found.get("attributes", {}).items()
    }
    return found
