"""The embedding generations of a store, as calls look them up, and the entries that change them.

The entries are decisions for the writer: each sees the state at its place in the log, checks
again what was checked before, and appends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from memsvc.domain.errors import MemsvcError
from memsvc.domain.generations import (
    NewGeneration,
    added,
    check_droppable,
    default_of,
    named,
    told,
    unknown_embedding,
)
from memsvc.domain.log import Action, Entry, Generation, VectorRange
from memsvc.store.store import Store
from memsvc.store.write_txn import WriteTxn

PURGE_BATCH: Final = 1_000
"""Vectors erased in one transaction, so that writes never wait long for it."""
_MISMATCH: Final = "DIMENSION_MISMATCH"


class Generations:
    """The generations that serve, known without asking the store each time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: tuple[Generation, ...] = ()
        self.refresh()

    def refresh(self) -> None:
        """Reads them again, after a change."""
        with self._store.read() as snapshot:
            self._known = tuple(snapshot.generations())

    @property
    def serving(self) -> tuple[Generation, ...]:
        """All of them, by number."""
        return self._known

    @property
    def default(self) -> Generation:
        """The one that is meant when no embedding is named."""
        return default_of(self._known)

    def named(self, embedding: str) -> Generation:
        """The generation of an embedder. Raises FailedPrecondition when it is unknown."""
        return named(embedding, self._known)

    def explain(self, error: MemsvcError) -> MemsvcError:
        """The error, with what embeddings there are when it is about a dimension."""
        if error.reason == _MISMATCH:
            error.hint = f"send the vector with the embedding it is of: {told(self._known)}"
        return error


def start_generation(embedding: str, dimension: int) -> Entry:
    """The entry that makes the first embedding generation of a store."""
    return _entry(Action.GENERATION, Generation(1, embedding, dimension, True), "system")


def add(wish: NewGeneration, actor: str) -> Callable[[WriteTxn], Generation]:
    """Adds a generation. See domain.generations.added."""

    def decide(txn: WriteTxn) -> Generation:
        made = added(txn.all_generations(), wish)
        for generation in made:
            txn.append(_entry(Action.GENERATION, generation, actor))
        return made[-1]

    return decide


def make_default(embedding: str, actor: str) -> Callable[[WriteTxn], Generation]:
    """Makes a generation the default, in one entry; none when it is that already. Raises
    FailedPrecondition when it is unknown."""

    def decide(txn: WriteTxn) -> Generation:
        found = named(embedding, txn.generations())
        if not found.is_default:
            found = replace(found, is_default=True)
            txn.append(_entry(Action.GENERATION_DEFAULT, found, actor))
        return found

    return decide


def drop(embedding: str, actor: str) -> Callable[[WriteTxn], Generation]:
    """Drops a generation: it serves no more from here on. What is on disk goes by and by.
    Raises FailedPrecondition when it is unknown or the default."""

    def decide(txn: WriteTxn) -> Generation:
        serving = txn.generations()
        found = named(embedding, serving)
        check_droppable(found, serving)
        found = replace(found, dropped=True)
        txn.append(_entry(Action.GENERATION_DROP, found, actor))
        return found

    return decide


def purge_vectors(txn: WriteTxn) -> bool:
    """Erases some vectors of dropped generations; whether more may be left."""
    for generation in txn.all_generations():
        found = txn.first_vectors(generation.number, PURGE_BATCH) if generation.dropped else None
        if found is None:
            continue
        number, rows = found
        partition = txn.partition_number(number)
        assert partition is not None
        txn.append(
            Entry(
                partition.tenant,
                partition.agent,
                Action.GENERATION_PURGE,
                actor="system",
                reason="embedding dropped",
                purged=VectorRange(generation.number, rows[0], rows[-1] + 1),
            )
        )
        return True
    return False


def check_serving(txn: WriteTxn, generation: Generation) -> None:
    """Raises FailedPrecondition when it was dropped since the request looked it up."""
    if not txn.serves(generation.number):
        raise unknown_embedding(generation.embedding, txn.generations())


def _entry(action: Action, generation: Generation, actor: str) -> Entry:
    return Entry("", "", action, actor=actor, generation=generation)
