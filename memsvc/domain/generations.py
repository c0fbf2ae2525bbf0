"""Embedding generations side by side: what is refused, and how far one is filled.

A generation is the vectors of one embedding model. One is the default, meant when a call names
none. See memsvc/service/DESIGN.md for the life of one.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from memsvc.domain import limits
from memsvc.domain.errors import FailedPrecondition, Violation, invalid
from memsvc.domain.filters import text_fits
from memsvc.domain.log import Generation
from memsvc.domain.types import Status

MAX_SERVING: Final = 4
"""Generations that serve at once: each has vectors of every memory on disk."""
MIN_COVERAGE: Final = 0.99
"""Share of the memories with a default vector that must have one of what becomes the default."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """How far a generation is filled. Of ``memories`` (those that a query may find by their
    text), ``vectors`` have a vector of it, ``of_default`` one of the default generation, and
    ``both`` have both."""

    memories: int = 0
    vectors: int = 0
    of_default: int = 0
    both: int = 0

    @property
    def lacking(self) -> int:
        """Memories without a vector of it."""
        return self.memories - self.vectors

    @property
    def share(self) -> float:
        """Share of what the default finds by vector that it would find too, 0 to 1."""
        return self.both / self.of_default if self.of_default else 1.0

    def plus(self, memories: int, vectors: int, of_default: int, both: int) -> Coverage:
        """With some more memories counted."""
        return Coverage(
            self.memories + memories,
            self.vectors + vectors,
            self.of_default + of_default,
            self.both + both,
        )


@dataclass(frozen=True, slots=True)
class GenerationFacts:
    """A generation and how far it is filled; ``eta_ms`` 0 when it is, or it cannot be told.
    ``erasing``: dropped, and not everything of it is off the disk. ``needed_bytes`` of disk, about,
    once it is filled; only told when it is created."""

    generation: Generation
    coverage: Coverage = Coverage()
    eta_ms: int = 0
    erasing: bool = False
    needed_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LackingMemory:
    """A memory without a vector of some generation: what an embedder needs, and its version."""

    tenant: str
    agent: str
    session: str
    id: bytes
    version: int
    status: Status
    summary: str
    content: str


def eta_ms(samples: Sequence[tuple[int, int]], lacking: int) -> int:
    """About when a generation will be filled, in ms from the last sample, by the speed between
    the first sample (UTC ms, vectors) and the last; 0 when it is, or it cannot be told."""
    if lacking <= 0 or len(samples) < 2:
        return 0
    (began, before), (now, vectors) = samples[0], samples[-1]
    gained = vectors - before
    return 0 if gained <= 0 else round(lacking * (now - began) / gained)


def default_of(known: Iterable[Generation]) -> Generation:
    """The one that is meant when a call names none."""
    return next(g for g in known if g.is_default)


def told(known: Iterable[Generation]) -> str:
    """The embeddings there are, for people."""
    return ", ".join(
        f"{g.embedding or '(unnamed)'} ({g.dimension} numbers{', default' if g.is_default else ''})"
        for g in known
    )


def unknown_embedding(name: str, known: Sequence[Generation]) -> FailedPrecondition:
    """The error for a model that this store has no vectors of."""
    shown = told(known)
    return FailedPrecondition(
        f"embedding: {name!r} is not known here; known are {shown}",
        reason="EMBEDDING_UNKNOWN",
        hint=f"vectors of different models cannot be compared: name one of {shown}, or have a "
        "new one added (memsvc generation create)",
        violations=(Violation("embedding", f"one of {shown}"),),
        metadata={"known": ",".join(g.embedding for g in known)},
    )


def named(name: str, serving: Sequence[Generation]) -> Generation:
    """The generation of an embedding, "" = the default. Raises FailedPrecondition."""
    if not name:
        return default_of(serving)
    for generation in serving:
        if generation.embedding == name:
            return generation
    raise unknown_embedding(name, serving)


@dataclass(frozen=True, slots=True)
class NewGeneration:
    """What is asked for: a generation, and ``current``, a name for the default one if it has none.
    ``dtype`` "", ``m`` 0, ``ef_construction`` 0: as the node says."""

    embedding: str
    dimension: int
    current: str = ""
    dtype: str = ""
    m: int = 0
    ef_construction: int = 0


def added(known: Sequence[Generation], wish: NewGeneration) -> list[Generation]:
    """What to write down to add a generation: it, behind the default one with its new name when
    that had none. ``known`` are all there ever were.

    Raises InvalidArgument, FailedPrecondition.
    """
    embedding, current = wish.embedding, wish.current
    serving = [g for g in known if not g.dropped]
    default = default_of(serving)
    _check_name("embedding", embedding)
    for field, number, low, high in (
        ("dimension", wish.dimension, 1, limits.MAX_DIMENSION),
        ("m", wish.m or limits.MIN_M, limits.MIN_M, limits.MAX_M),
        (
            "ef_construction",
            wish.ef_construction or limits.MIN_EF_CONSTRUCTION,
            limits.MIN_EF_CONSTRUCTION,
            limits.MAX_EF_CONSTRUCTION,
        ),
    ):
        if not low <= number <= high:
            raise invalid(field, f"{low} to {high}")
    if wish.dtype and wish.dtype not in limits.GRAPH_DTYPES:
        raise invalid("dtype", f"one of {', '.join(limits.GRAPH_DTYPES)}")
    for generation in serving:
        if embedding in (generation.embedding, current):
            raise FailedPrecondition(
                f"embedding: {embedding!r} is there already",
                reason="EMBEDDING_EXISTS",
                hint=f"there are {told(serving)}: give the new model another name",
                violations=(Violation("embedding", "is there already"),),
            )
    if len(serving) >= MAX_SERVING:
        raise FailedPrecondition(
            f"there are {len(serving)} embeddings, {MAX_SERVING} at most",
            reason="TOO_MANY_EMBEDDINGS",
            hint=f"drop one that is not needed any more: {told(serving)}",
        )
    fresh = Generation(
        max(g.number for g in known) + 1,
        embedding,
        wish.dimension,
        False,
        dtype=wish.dtype,
        m=wish.m,
        ef_construction=wish.ef_construction,
    )
    if default.embedding:
        if current not in ("", default.embedding):
            raise invalid(
                "current",
                f"the present embedding is named {default.embedding!r} already",
                hint="leave it out (--current): it is for a model that has no name yet",
            )
        return [fresh]
    if not current:
        raise FailedPrecondition(
            "the present embedding has no name, so clients could not name it any more once "
            "another is the default",
            reason="EMBEDDING_UNNAMED",
            hint="give it one with --current (field current), and have clients of it send that",
            violations=(Violation("current", "a name for the present embedding"),),
        )
    _check_name("current", current)
    return [replace(default, embedding=current), fresh]


def _check_name(field: str, name: str) -> None:
    if not name.strip():
        raise invalid(field, "is required")
    if not text_fits(name, limits.MAX_EMBEDDING_BYTES):
        raise invalid(field, f"valid UTF-8 of at most {limits.MAX_EMBEDDING_BYTES} bytes")
    if any(unicodedata.category(ch)[0] == "C" for ch in name):
        raise invalid(field, "must not contain control characters")


def check_coverage(generation: Generation, coverage: Coverage, least: float) -> None:
    """Raises FailedPrecondition when too much would not be found any more."""
    if coverage.share >= least:
        return
    raise FailedPrecondition(
        f"{coverage.of_default - coverage.both} of {coverage.of_default} memories that are found "
        f"by vector have none of {generation.embedding!r} yet: coverage {coverage.share:.4f}, "
        f"wanted {least:g}",
        reason="COVERAGE_TOO_LOW",
        hint="fill them in (memsvc generation lacking lists them), ask for less with "
        "--min-coverage, or go on regardless with --force: words still find them",
        metadata={"coverage": f"{coverage.share:.6f}"},
    )


def check_droppable(generation: Generation, serving: Iterable[Generation]) -> None:
    """Raises FailedPrecondition for the default one."""
    if generation.is_default:
        raise FailedPrecondition(
            f"embedding: {generation.embedding!r} is the default",
            reason="GENERATION_IS_DEFAULT",
            hint=f"make another the default first; there are {told(serving)}",
            violations=(Violation("embedding", "is the default"),),
        )


def configured(serving: Sequence[Generation], embedding: str, dimension: int) -> Generation | None:
    """The generation that ``index.embedding`` ("" = whichever has the dimension, the default
    before others) and ``index.dimension`` mean; None when no such one serves."""
    fits = [
        g
        for g in sorted(serving, key=lambda g: not g.is_default)
        if g.dimension == dimension and embedding in ("", g.embedding)
    ]
    return fits[0] if fits else None
