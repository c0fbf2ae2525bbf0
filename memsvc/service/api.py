"""What the edges call: the use cases as a small port, and the control of one call."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from memsvc.domain.errors import Cancelled, DeadlineExceeded
from memsvc.domain.generations import GenerationFacts, LackingMemory, NewGeneration
from memsvc.domain.types import (
    Caller,
    Degraded,
    ForgetAnswer,
    ForgetRequest,
    HealthAnswer,
    QueryAnswer,
    QueryRequest,
    WriteAnswer,
    WriteRequest,
)
from memsvc.service.rebuild import RebuildFacts


@dataclass(slots=True)
class Control:
    """Deadline and cancellation of one call. ``deadline`` is a ``time.monotonic()`` value
    in seconds; ``cancelled`` tells whether the caller went away."""

    deadline: float = float("inf")
    cancelled: Callable[[], bool] = field(default=lambda: False)

    def remaining(self) -> float:
        """Seconds left; may be negative."""
        return self.deadline - time.monotonic()

    def check(self) -> None:
        """Raises Cancelled or DeadlineExceeded when the call should stop."""
        if self.cancelled():
            raise Cancelled("the caller went away")
        if self.remaining() <= 0:
            raise DeadlineExceeded("the deadline of the call has passed")


class MemoryApi(Protocol):
    """The four calls, on domain types. Every error raised is a MemsvcError."""

    def write(self, caller: Caller, request: WriteRequest, control: Control) -> WriteAnswer:
        """Applies all items or none; returns when they are committed."""

    def query(self, caller: Caller, request: QueryRequest, control: Control) -> QueryAnswer:
        """Answers for one position; past ``query.timeout_ms`` empty and marked."""

    def forget(self, caller: Caller, request: ForgetRequest, control: Control) -> ForgetAnswer:
        """Erases or lowers memories."""

    def health(self) -> HealthAnswer:
        """Never raises; waits for nothing but the database file to be replaced."""


@dataclass(frozen=True, slots=True)
class AgentFacts:
    """Counts of one partition; ``active`` includes expired memories not yet swept."""

    tenant: str
    agent: str
    memories: int
    active: int
    bytes: int


@dataclass(frozen=True, slots=True)
class SnapshotFacts:
    """A snapshot: its folder on the machine of the node, log position and epoch, UTC ms of when
    it was taken, bytes of its files."""

    path: str
    position: int
    epoch: int
    time: int
    bytes: int


@dataclass(frozen=True, slots=True)
class RebuildFailure:
    """A segment that a rebuild left as it was, and why."""

    tenant: str
    agent: str
    segment: str
    reason: str


@dataclass(frozen=True, slots=True)
class RebuildAnswer:
    """A rebuild, how far it is, and the first segments that it left as they were."""

    facts: RebuildFacts
    failures: tuple[RebuildFailure, ...] = ()


@dataclass(frozen=True, slots=True)
class Promoted:
    """A replica that is primary now: its epoch and where that begins, replication.listen of the
    former primary, nodes of the group that did not answer, and whether acknowledged writes
    may be missing."""

    epoch: int
    position: int
    former: str
    silent: tuple[str, ...] = ()
    may_lack: bool = False


class GenerationApi(Protocol):
    """The embedding models of one node, on domain types."""

    def facts(self) -> list[GenerationFacts]:
        """All there ever were, by number."""

    def create(self, caller: Caller, wish: NewGeneration, validate_only: bool) -> GenerationFacts:
        """Adds one."""

    def make_default(
        self,
        caller: Caller,
        embedding: str,
        min_coverage: float,
        force: bool,
        validate_only: bool,
    ) -> GenerationFacts:
        """Makes one the default, checked unless ``force``."""

    def drop(
        self, caller: Caller, embedding: str, confirm: str, validate_only: bool
    ) -> GenerationFacts:
        """Drops one, for good."""

    def lacking(
        self, tenant: str, agent: str, embedding: str, page_size: int, page_token: str
    ) -> tuple[list[LackingMemory], str]:
        """A page of memories without a vector of one, and the token of the next."""


class AdminApi(Protocol):
    """Administration of one node, on domain types."""

    @property
    def generations(self) -> GenerationApi:
        """Its embedding models."""

    def list_tenants(
        self, tenant: str, page_size: int, page_token: str
    ) -> tuple[list[AgentFacts], str]:
        """One page and the token of the next ("" = the end)."""

    def export_tenant(
        self, tenant: str, agent: str, vectors: bool
    ) -> tuple[int, Iterator[dict[str, object]]]:
        """Number of memories, and each as a JSON object that ``memsvc import`` reads."""

    def erase_tenant(
        self, caller: Caller, tenant: str, agent: str, validate_only: bool, reason: str
    ) -> tuple[int, str]:
        """Memories erased, and the position."""

    def set_degraded(self, level: int | None, reason: str) -> tuple[Degraded, bool]:
        """Level in force, and whether it is forced."""

    def inspect(
        self, tenant: str, agent: str, verify: bool, log_tail: int, memory_id: str
    ) -> dict[str, object]:
        """Facts for people and scripts."""

    def maintain(
        self, seal_min_rows: int, merge_all: bool, purge: bool, wait_seconds: float
    ) -> tuple[int, bool]:
        """Jobs started, and whether nothing is left to do."""

    def start_rebuild(
        self, tenant: str, agent: str, everything: bool, validate_only: bool
    ) -> RebuildAnswer:
        """What was begun, or would be."""

    def rebuild(self) -> RebuildAnswer:
        """The rebuild that runs, or the last one."""

    def cancel_rebuild(self) -> RebuildAnswer:
        """The rebuild that was ended."""

    def reload(self) -> tuple[list[str], list[str]]:
        """Settings that took effect, and those that need a restart."""

    def take_snapshot(self) -> SnapshotFacts:
        """Takes one now; everything acknowledged is in it."""

    def promote(self, force: bool, accept_loss: bool) -> Promoted:
        """Makes a replica the primary of its group."""
