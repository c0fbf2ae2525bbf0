"""Turns and texts to chunks: what is stored together, what it says, how much it matters."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final
from zoneinfo import ZoneInfo

from memsvc.client.days import with_day
from memsvc.client.ingest.chunking import pieces
from memsvc.client.ingest.chunks import MAX_TURN_ATTRIBUTES, Chunk, Turn, dedup_key
from memsvc.client.ingest.importance import importance
from memsvc.client.ingest.settings import IngestSettings
from memsvc.client.ingest.summaries import summary
from memsvc.client.ingest.topics import TopicTagger
from memsvc.client.ingest.windows import Numbered, Window, Windows
from memsvc.domain.types import AttributeValue

REMEMBERED: Final = 64
"""Last turns of a session among which a repeat is noticed."""


class Chunker:
    """Turns of many conversations, one after the other. Not safe for threads."""

    def __init__(self, settings: IngestSettings) -> None:
        self._settings = settings
        self._zone = ZoneInfo(settings.time_zone)
        self._sessions: OrderedDict[str, Windows] = OrderedDict()
        self._said: dict[str, deque[str]] = {}
        self._topics = TopicTagger()

    def restore(self, session: str, turns: Iterable[Numbered]) -> None:
        """Takes up a conversation where another process ended."""
        self._sessions[session] = Windows(self._settings.windows, turns)
        self._said.pop(session, None)  # turns given again are no repeats

    def open_turns(self, session: str) -> Sequence[Numbered]:
        """Turns of a session that chunks to come may hold; () when it is not open."""
        windows = self._sessions.get(session)
        return windows.open if windows else ()

    def add(self, turn: Turn, now_ms: int) -> list[Chunk]:
        """The chunks that are ready now. ``now_ms`` (UTC) is for a turn without a time."""
        windows = self._sessions.setdefault(turn.session, Windows(self._settings.windows))
        self._sessions.move_to_end(turn.session)
        seq = windows.next_seq if turn.seq is None else turn.seq
        text, ts = turn.text.strip(), now_ms if turn.ts is None else turn.ts
        turn = replace(turn, text=text, ts=ts)  # its seq stays None if it had none, see _identity
        if len(text) > self._settings.windows.most:
            return self._of_windows(windows.add(seq, None)) + self._of_text(turn, seq)
        turn = replace(turn, importance=self._importance(turn))
        return self._of_windows(windows.add(seq, turn))

    def add_text(self, text: Turn, now_ms: int) -> list[Chunk]:
        """The chunks of a text that is no part of a conversation; the seq of its chunks is
        their number within it."""
        text = replace(text, ts=now_ms if text.ts is None else text.ts)
        return self._of_text(text, None)

    def rest(self, session: str | None = None) -> list[Chunk]:
        """The chunks of windows that are not full, of one session or of all."""
        names = self._sessions if session is None else [session]
        return [
            chunk
            for name in names
            if (windows := self._sessions.get(name))
            for chunk in self._of_windows(windows.rest())
        ]

    def let_go(self) -> list[Chunk]:
        """The chunks of windows that are not full, after which no text is held any more."""
        chunks = self.rest()
        for windows in self._sessions.values():
            windows.let_go()
        self._said.clear()
        return chunks

    def end(self, session: str) -> list[Chunk]:
        """The same for one session, of which nothing is kept."""
        chunks = self.rest(session)
        self._sessions.pop(session, None)
        self._said.pop(session, None)
        return chunks

    @property
    def sessions(self) -> list[str]:
        """Conversations that are open."""
        return list(self._sessions)

    def oldest_beyond(self, most: int) -> str | None:
        """The session not added to for longest, when there are more than ``most``."""
        return next(iter(self._sessions)) if len(self._sessions) > most else None

    def _importance(self, turn: Turn) -> float:
        said = self._said.setdefault(turn.session, deque(maxlen=REMEMBERED))
        folded = " ".join(turn.text.casefold().split())
        repeated = folded in said
        said.append(folded)
        if turn.importance is not None:
            return turn.importance
        return importance(turn.text, turn.role, repeated=repeated)

    def _of_windows(self, windows: Iterable[Window]) -> list[Chunk]:
        return [self._of_turns(part) for window in windows for part in self._parts(window)]

    def _parts(self, window: Window) -> list[Window]:
        """The window, or parts of it that are not too long."""
        parts: list[Window] = []
        length = 0
        for one in window:
            size = len(self._line(one[1]))
            if parts and length + 1 + size <= self._settings.windows.most:
                parts[-1].append(one)
                length += 1 + size
            else:
                parts.append([one])
                length = size
        return parts

    def _of_turns(self, turns: Window) -> Chunk:
        first_seq, first = turns[0]
        said = [turn for _, turn in turns]
        content = "\n".join(map(self._line, said))
        return Chunk(
            key=dedup_key(first.session or first.source, first_seq, _identity(first, first.text)),
            content=content,
            summary=self._summary(
                [(self._label(turn), turn.text) for turn in said],
                max(turn.ts or 0 for turn in said),
            ),
            session=first.session,
            seq=first_seq,
            last_seq=turns[-1][0],
            ts=max(turn.ts or 0 for turn in said),
            importance=max(turn.importance or 0.0 for turn in said),
            role=_common([turn.role for turn in said]),
            topic=_common([turn.topic for turn in said]) or self._topics.tag(content),
            source=first.source,
            category=_common([turn.category for turn in said]),
            memory_type=_common([turn.memory_type for turn in said]),
            attributes=_merged([turn.attributes for turn in said]),
        )

    def _of_text(self, text: Turn, seq: int | None) -> list[Chunk]:
        """Its pieces. They all have the seq of a turn, else the numbers from 0 on."""
        label = self._label(text) if seq is not None else ""
        chunks = []
        for number, piece in enumerate(pieces(text.text, self._settings.pieces)):
            at = number if seq is None else seq
            identity = piece if seq is None else _identity(text, piece)
            content = f"{label}: {piece}" if label else piece
            given = text.importance
            chunks.append(
                Chunk(
                    key=dedup_key(text.session or text.source, at, identity),
                    content=content,
                    summary=self._summary([(label, piece)], text.ts or 0),
                    session=text.session,
                    seq=at,
                    last_seq=at,
                    ts=text.ts or 0,
                    importance=importance(piece, text.role) if given is None else given,
                    role=text.role,
                    topic=text.topic or self._topics.tag(content),
                    source=text.source,
                    category=text.category,
                    memory_type=text.memory_type,
                    attributes=text.attributes,
                    windowed=False,
                    anew=text.anew,
                )
            )
        return chunks

    def _summary(self, turns: Sequence[tuple[str, str]], ts: int) -> str:
        short = summary(turns, self._settings.summary_characters)
        return with_day(short, ts, self._zone) if self._settings.days else short

    def _line(self, turn: Turn) -> str:
        label = self._label(turn)
        return f"{label}: {turn.text}" if label else turn.text

    def _label(self, turn: Turn) -> str:
        return (turn.speaker or turn.role) if self._settings.windows.labels else ""


def _identity(turn: Turn, text: str) -> str:
    """What the key of a turn is made from: its text. With its time where nobody numbered it: a
    session that is gone on with after its numbers were forgotten begins at 0 again, and often
    with the same greeting, which must not hide what was said behind it."""
    return text if turn.seq is not None else f"{text}\n{turn.ts}"


def _merged(given: Sequence[Mapping[str, AttributeValue]]) -> dict[str, AttributeValue]:
    """Of equal names the last; names beyond what a memory takes are left out."""
    merged: dict[str, AttributeValue] = {}
    for attributes in given:
        for name, value in attributes.items():
            if name in merged or len(merged) < MAX_TURN_ATTRIBUTES:
                merged[name] = value
    return merged


def _common(values: Sequence[str]) -> str:
    """What all of them say; "" where they differ."""
    return values[0] if len(set(values)) == 1 else ""
