"""What is decided about a query before any row is looked at."""

from __future__ import annotations

from dataclasses import dataclass, replace

from memsvc.domain.errors import PermissionDenied, Violation
from memsvc.domain.filters import named_statuses
from memsvc.domain.log import Generation
from memsvc.domain.types import Caller, Degraded, Mode, QueryRequest, Status
from memsvc.service.search.scope import Reader
from memsvc.text.tokenize import query_terms


@dataclass(frozen=True, slots=True)
class CacheBounds:
    """What answers are kept within: for how many seconds, how many, and how many bytes."""

    seconds: float
    entries: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """What the searcher takes from the configuration; times in ms."""

    default_top_k: int
    ef_search: int
    timeout_ms: int
    half_life_ms: int
    max_answer_bytes: int = 16 * 1024 * 1024
    cache: CacheBounds | None = None
    """For answers to repeated queries; None = none are kept."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked request: how it will be answered."""

    request: QueryRequest
    reader: Reader
    mode: Mode
    generation: Generation
    top_k: int
    min_score: float
    ef: int
    terms: tuple[str, ...]
    degraded: Degraded

    @property
    def scored_at(self) -> int:
        """The time by which importance and freshness go, UTC ms."""
        return self.reader.now if self.request.as_of is None else self.request.as_of

    def at(self, time: int) -> Plan:
        """For a store whose last entry is of ``time``, UTC ms: when this clock is behind the one
        that wrote, expiry goes by the later."""
        if time <= self.reader.now:
            return self
        return replace(self, reader=replace(self.reader, now=time))


def check_rights(caller: Caller, request: QueryRequest) -> None:
    """Raises PermissionDenied when hidden statuses are asked for without the review right."""
    hidden = named_statuses(request.filters) - {int(Status.ACTIVE)}
    if hidden and not caller.may_review:
        names = ", ".join(Status(number).name for number in sorted(hidden) if number)
        raise PermissionDenied(
            f"filters.status: {names} needs the review right",
            reason="REVIEW_RIGHT_NEEDED",
            hint="ask for a token with the right review, or filter for ACTIVE",
            violations=(Violation("filters.status", "only ACTIVE without the review right"),),
        )


def words_of(text: str) -> tuple[str, ...]:
    """Distinct terms of a query text; empty when it has no letter or digit."""
    return tuple(query_terms(text)) if text and not text.isspace() else ()
