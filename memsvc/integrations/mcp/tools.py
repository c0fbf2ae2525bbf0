"""The tools that a model is given. Inputs are typed and bounded; what fails is told as a tool error
that says what to do."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, Final, Literal, ParamSpec, TypeVar

from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, TextContent
from pydantic import BaseModel, Field

from memsvc.client import ClientError, Context, EmbedderError, ForgetMode, Mode, Status
from memsvc.client.days import split_day
from memsvc.client.recall.context import ContextItem, one_line
from memsvc.client.recall.pipeline import EMBEDDER_FAILED, EMBEDDER_SLOW
from memsvc.domain.limits import MAX_ID_BYTES
from memsvc.integrations.mcp.backend import Backend
from memsvc.integrations.mcp.models import (
    Forgotten,
    FullText,
    Memory,
    MemoryStatus,
    Recalled,
    Remembered,
)
from memsvc.v1 import memory_service_pb2 as pb

MAX_TEXT: Final = 4_000
"""Characters of a fact."""
MAX_QUERY: Final = 2_000
MAX_LABEL: Final = 60
"""Characters of a topic or session: 4 bytes each stay below the service's 256 bytes."""
MAX_FORGET: Final = 100
"""Memories that one call may forget."""

P = ParamSpec("P")
R = TypeVar("R")

Text = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_TEXT,
        description="The fact, as a statement that is understood without the conversation: "
        '"The user\'s passport runs out in March 2027.", not "It runs out in March."',
    ),
]
Topic = Annotated[str, Field(max_length=MAX_LABEL, description="A word or two; may be empty.")]
Session = Annotated[
    str, Field(max_length=MAX_LABEL, description="Name of the conversation, if it has one.")
]
Importance = Annotated[
    float | None,
    Field(
        ge=0,
        le=1,
        description="0.8 and more: preferences, decisions, corrections. 0.3 and less: small talk. "
        "Leave it out to have it judged by rules.",
    ),
]
Query = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_QUERY,
        description="What to look for, as a question or in a few words: the current need alone, "
        "not the whole conversation.",
    ),
]
Day = Annotated[date | None, Field(description="A day (UTC) as YYYY-MM-DD.")]
Id = Annotated[
    str, Field(min_length=1, max_length=MAX_ID_BYTES, description="Id of a memory, from recall.")
]
Ids = Annotated[
    list[Id],
    Field(min_length=1, max_length=MAX_FORGET, description="Ids of memories, from recall."),
]
Reason = Annotated[str, Field(max_length=MAX_LABEL, description="Why, for the audit.")]

_ANSWERED: Final = frozenset(
    {EMBEDDER_FAILED, EMBEDDER_SLOW, "SEGMENT_DAMAGED", "READ_FALLBACK", "REPLICA_LAGGING", "STALE"}
)
"""Reasons of an answer that was looked for all the same, so that an empty one means something."""


def told(call: Callable[P, R]) -> Callable[P, R]:
    """What the service or an embedder refuses becomes a tool error."""

    @functools.wraps(call)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(*args, **kwargs)
        except ClientError as error:
            raise ToolError(explained(error)) from error
        except EmbedderError as error:
            raise ToolError(str(error)) from error

    return wrapped


def explained(error: ClientError) -> str:
    """An error of the client in one text: what, which fields, and what to do."""
    parts = [f"{error.message} [{error.reason or error.code}]"]
    parts += [
        f"{one.field}: {one.description}" for one in error.violations if one.field not in parts[0]
    ]
    if error.hint:
        parts.append(f"hint: {error.hint}")
    if error.retry_after_ms is not None:
        parts.append(f"try again in {error.retry_after_ms / 1_000:g} s")
    return "; ".join(parts)


class MemoryTools:
    """The tools over one memory. Safe to use from several threads; calls block."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @told
    def remember(
        self,
        text: Text,
        topic: Topic = "",
        importance: Importance = None,
        session: Session = "",
    ) -> Remembered:
        """Stores one fact."""
        if not text.strip():
            raise ToolError("text: expected something to remember, not spaces alone")
        found = self._backend.ready().facts.remember(
            text,
            session=session or self._backend.namespace.session,
            topic=topic,
            importance=importance,
        )
        outcome: Literal["stored", "already_known", "withheld"] = "already_known"
        if found.created:
            outcome = "stored"
        elif found.status is not Status.ACTIVE:
            outcome = "withheld"
        return Remembered(id=found.id, outcome=outcome, found_by_meaning=found.has_vector)

    @told
    def recall(
        self, query: Query, topic: Topic = "", since: Day = None, until: Day = None
    ) -> Annotated[CallToolResult, Recalled]:
        """Finds what is remembered."""
        if since and until and since > until:
            raise ToolError(f"since ({since}) is later than until ({until})")
        filters: dict[str, Any] = {"topic": topic} if topic else {}
        bounds: dict[str, int] = {}
        if since:
            bounds["gte"] = _ms(since)
        if until and until < date.max:
            bounds["lt"] = _ms(until + timedelta(days=1))
        if bounds:
            filters["ts"] = bounds
        context = self._backend.ready().agent.recall(query, filters=filters or None)
        if context.degraded and not context and context.degraded not in _ANSWERED:
            raise ToolError(self._unanswered(context.degraded))
        memories = [_memory(item) for item in context.items]
        recalled = Recalled(memories=memories, incomplete=context.degraded)
        return _result(recalled, _as_text(context))

    @told
    def get_full_text(self, id: Id) -> Annotated[CallToolResult, FullText]:
        """Reads a memory in full."""
        agent = self._backend.ready().agent
        # Ids were given, and no handles; a part of an id must not come to mean a memory.
        text = None if agent.is_short(id) else agent.full_text(id)
        if text is None:
            raise ToolError(f"no memory has the id {id!r}; take one that recall gave")
        return _result(FullText(id=id, text=text), text)

    @told
    def forget(
        self,
        ids: Ids,
        mode: Literal["fade", "erase"] = "fade",
        reason: Reason = "",
        dry_run: bool = False,
    ) -> Forgotten:
        """Forgets memories."""
        wanted = list(dict.fromkeys(ids))
        agent = self._backend.ready().agent
        whole = [one for one in wanted if not agent.is_short(one)]
        matched: set[str] = set()
        if whole:
            answer = agent.forget(
                whole,
                mode=ForgetMode.HARD if mode == "erase" else ForgetMode.DECAY,
                reason=reason,
                validate_only=dry_run,
            )
            matched = set(answer.ids)
        return Forgotten(
            mode=mode,
            changed=[one for one in wanted if one in matched],
            not_found=[one for one in wanted if one not in matched],
            dry_run=dry_run,
        )

    @told
    def status(self) -> MemoryStatus:
        """How the memory is."""
        health = self._backend.client.health()
        # Health needs no token: a read tells whether this one may do what the tools do.
        self._backend.client.query(self._backend.namespace, mode=Mode.BROWSE, top_k=1)
        ready = self._backend.ready()
        space = self._backend.namespace
        return MemoryStatus(
            ready=health.ready,
            namespace=f"{space.tenant}/{space.agent}",
            searches_by="meaning and words" if ready.by_meaning else "words",
            note="; ".join([*health.reasons, *([ready.note] if ready.note else [])]),
            degraded=health.degraded.reason if health.degraded.level else "",
            role=pb.Role.Name(health.role).removeprefix("ROLE_").lower(),
            version=health.version,
        )

    def _unanswered(self, reason: str) -> str:
        address = getattr(self._backend.client, "address", "")
        at = f" at {address}" if address else ""
        if reason == "UNREACHABLE":
            return (
                f"no memory service answers{at} [UNREACHABLE]; hint: ask whoever runs it to check "
                "the address and start it (memsvc serve), and go on without it meanwhile"
            )
        return (
            f"the memory service{at} cannot answer now [{reason}]; hint: try again later, and go "
            "on without it meanwhile; the tool status may tell more"
        )


def _ms(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1_000


def _memory(item: ContextItem) -> Memory:
    return Memory(
        id=item.id,
        summary=one_line(split_day(item.summary)[1]),
        said_at=_time(item.ts),
        topic=item.topic,
        session=item.session,
        similarity=None if item.similarity is None else round(item.similarity, 4),
    )


def _time(ms: int) -> str | None:
    if not ms:
        return None
    return datetime.fromtimestamp(ms / 1_000, UTC).isoformat(timespec="seconds")


def _as_text(context: Context) -> str:
    lines = [_line(item) for item in context.items]
    if context.degraded:
        lines.append(f"(some memories may be missing: {context.degraded})")
    return "\n".join(lines) or "Nothing is remembered about this."


def _line(item: ContextItem) -> str:
    """As in a context, with the id instead of a handle: handles would change their meaning with a
    restart, and a model may forget by them."""
    day, said = split_day(item.summary)
    if not day and item.ts:
        day = f"{datetime.fromtimestamp(item.ts / 1_000, UTC):%Y-%m-%d}"
    return f"- {one_line(said)} (id: {item.id}{f', {day}' if day else ''})"


def _result(model: BaseModel, text: str) -> CallToolResult:
    return CallToolResult(
        content=[TextContent(type="text", text=text)],
        structured_content=model.model_dump(mode="json"),
    )
