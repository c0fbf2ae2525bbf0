"""What is taken: a turn that the service would refuse is refused where it is given."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from memsvc.client.ingest.chunks import MAX_TURN_ATTRIBUTES, Turn
from memsvc.client.messages import LAST_SEQ
from memsvc.domain.errors import InvalidArgument
from memsvc.domain.limits import MAX_LABEL_BYTES
from memsvc.domain.types import Metadata, Namespace, NewMemory, WriteRequest
from memsvc.domain.validate import check_write

MAX_CHARACTERS: Final = 10_000_000
"""Of one turn or text: some 20,000 chunks, for which others wait about half a minute."""
MAX_SEQ: Final = 2**63 - 1_000_001
"""Leaves room for a million turns that come without a number."""

_TEXTS: Final = (
    "text", "role", "speaker", "session", "topic", "source", "category", "memory_type",
)  # fmt: skip


def expect_turns(given: Iterable[object]) -> None:
    """TypeError for what is no Turn: a text, or a list of turns in the place of one."""
    for one in given:
        if not isinstance(one, Turn):
            raise TypeError(f"expected a Turn for each turn, not {type(one).__name__}")


def check(space: Namespace, session: str, turn: Turn | None = None) -> None:
    """ValueError for what the service would refuse, TypeError for a value of another type."""
    metadata = Metadata()
    if turn is None:
        _check_type("session", session, str)
    else:
        _check_types(turn)
        if turn.seq is not None and not 0 <= turn.seq <= MAX_SEQ:
            raise ValueError(f"seq: expected 0 to 2**63 - 1,000,001, not {turn.seq}")
        if len(turn.text) > MAX_CHARACTERS:
            raise ValueError(
                f"text: expected at most {MAX_CHARACTERS:,} characters, not {len(turn.text):,}; "
                "divide it, or remember what it says in short"
            )
        _check_characters("text", turn.text)
        _check_characters("speaker", turn.speaker)
        if len(turn.speaker.encode()) > MAX_LABEL_BYTES:
            raise ValueError(f"speaker: expected at most {MAX_LABEL_BYTES} bytes")
        if len(turn.attributes) > MAX_TURN_ATTRIBUTES or LAST_SEQ in turn.attributes:
            raise ValueError(
                f"attributes: expected at most {MAX_TURN_ATTRIBUTES}, and none named {LAST_SEQ!r}"
            )
        metadata = Metadata(
            seq=turn.seq,
            role=turn.role,
            ts=turn.ts,
            importance=turn.importance,
            source=turn.source,
            topic=turn.topic,
            category=turn.category,
            memory_type=turn.memory_type,
            attributes=turn.attributes,
        )
    where = Namespace(space.tenant, space.agent, session)
    probe = NewMemory(content="x", metadata=metadata)
    try:
        check_write(WriteRequest(where, (probe,)), dimension=0)
    except InvalidArgument as error:
        raise ValueError(str(error).replace("items[0].memory.", "")) from None


def _check_types(turn: Turn) -> None:
    """What a message cannot hold would be found out when it is sent, and keep others back."""
    for name in _TEXTS:
        _check_type(name, getattr(turn, name), str)
    for name in ("seq", "ts"):
        _check_type(name, getattr(turn, name), int, None)
    _check_type("anew", turn.anew, bool)
    _check_type("importance", turn.importance, float, int, None)
    for name, value in turn.attributes.items():
        _check_type("attributes: a name", name, str)
        _check_type(f"attributes.{name}", value, str, bool, int, float, tuple)
        if isinstance(value, tuple):
            for one in value:
                _check_type(f"attributes.{name}: a member", one, str)


def _check_type(field: str, value: Any, *kinds: type | None) -> None:
    wanted = [kind or type(None) for kind in kinds]
    if not isinstance(value, tuple(wanted)) or (isinstance(value, bool) and bool not in wanted):
        names = " or ".join("None" if kind is None else kind.__name__ for kind in kinds)
        raise TypeError(f"{field}: expected {names}, not {type(value).__name__}")


def _check_characters(field: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{field}: half of a character (a lone surrogate) at place {error.start}, which cannot "
            "be stored; text.encode(errors='replace').decode() puts a question mark there"
        ) from None
