"""One batch of chunks on its way: vectors, duplicates, the write, and what became of each."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

import numpy as np

from memsvc.client.calls import MemoryCalls
from memsvc.client.embedders import (
    Embedder,
    EmbedderUnavailable,
    TextRefused,
    embed_each,
    embedding_of,
)
from memsvc.client.errors import ClientError
from memsvc.client.ingest.chunks import Chunk, grows, holds, told_apart
from memsvc.client.ingest.figures import same_figures
from memsvc.client.ingest.retrying import overloaded
from memsvc.client.ingest.settings import IngestSettings
from memsvc.client.messages import LAST_SEQ, item_message
from memsvc.domain.types import (
    Include,
    LateVector,
    Mode,
    Namespace,
    Touch,
    Update,
    Vector,
    WriteItem,
)
from memsvc.v1 import memory_service_pb2 as pb
from memsvc.v1 import types_pb2

CANDIDATES: Final = 5
"""Nearest memories looked at for each chunk: some may be of the same turns."""
MOST_PARTINGS: Final = 8
"""Conversations of one name and beginning that are told apart. Also an end where memories were
edited: their texts do not tell any more what their keys were made of."""
_WHOLE: Final = frozenset({"SEGMENT_DAMAGED", "DISK_STALLED", "READ_FALLBACK"})
"""Reasons of degraded answers that hold every memory all the same."""
_LOST: Final = "POSITION_LOST"
_GONE: Final = frozenset({types_pb2.STATUS_FORGOTTEN, types_pb2.STATUS_EXPIRED})


class Fate(Enum):
    """What became of a chunk; named as the fields of IngestReport."""

    WRITTEN = "written"
    GROWN = "grown"
    TOUCHED = "touched"
    EXISTING = "existing"
    SAMPLED_OUT = "sampled_out"
    REFUSED = "refused"


@dataclass(slots=True)
class Parcel:
    """A chunk on its way. ``fate`` None = not settled."""

    chunk: Chunk
    vector: Vector | None = None
    fate: Fate | None = None
    why: str = ""
    unchecked: bool = False
    same_as: str = ""
    """Id of a memory that says the same."""
    known: bool = False
    """Whether ``same_as`` is what the attempt before found, whose write was one call too many."""
    partings: int = 0
    """How often its key was found to be that of another conversation, or of what is forgotten."""

    def begins_anew(self, status: int) -> bool:
        """Takes another key where that of a forgotten memory, which it has for ever, is not to
        hide it; whether it did."""
        if not self.chunk.anew or status not in _GONE or self.partings >= MOST_PARTINGS:
            return False
        self.partings += 1
        key = self.chunk.key.removesuffix(f"+{self.partings - 1}")
        self.chunk = replace(self.chunk, key=f"{key}+{self.partings}")
        return True


class Sender:
    """Brings batches to the service. Not safe for threads."""

    def __init__(
        self,
        calls: MemoryCalls,
        namespace: Namespace,
        embedder: Embedder | None,
        settings: IngestSettings,
    ) -> None:
        self._calls = calls
        self._namespace = namespace
        self._embedder = embedder
        self._settings = settings
        self._embedding: str | None = None
        self._position = ""
        self._salt = os.urandom(16)

    def finished(self) -> None:
        """A batch is settled: what comes next is no repetition."""
        self._salt = os.urandom(16)

    def embed(self, parcels: Sequence[Parcel]) -> str:
        """Gives each a vector; a chunk that the model refuses, or all when it does not answer,
        go without (words find them). Returns why some have none, or "". Raises EmbedderError
        when the embedder is not set up rightly."""
        if self._embedder is None or not parcels:
            return ""
        texts = [parcel.chunk.content for parcel in parcels]
        try:
            rows = embed_each(self._embedder, texts, self._settings.embed_batch)
        except EmbedderUnavailable as error:
            return str(error)
        why = ""
        for parcel, row in zip(parcels, rows, strict=True):
            if isinstance(row, TextRefused):
                why = str(row)
            else:
                parcel.vector = row
        return why

    def send(self, parcels: Sequence[Parcel]) -> None:
        """Sets the fate of each parcel that has none. After an error (ClientError,
        EmbeddingMismatch) some may have one: send the rest again."""
        embedding = self._checked_embedding()
        parcels = [parcel for parcel in parcels if parcel.fate is None]
        try:
            self._send(parcels, embedding)
        except ClientError as error:
            if error.code == "FAILED_PRECONDITION":
                self._embedding = None  # perhaps another store answers there now
            # What was written meanwhile may be what another one of the batch says.
            if not overloaded(error) or any(parcel.fate is not None for parcel in parcels):
                for parcel in parcels:
                    parcel.known = False
            raise

    def _send(self, parcels: Sequence[Parcel], embedding: str) -> None:
        merged = self._find_duplicates(parcels, embedding)
        by_session: dict[str, list[Parcel]] = {}
        for number, parcel in enumerate(parcels):
            if number not in merged:
                by_session.setdefault(parcel.chunk.session, []).append(parcel)
        for session, group in by_session.items():
            self._write(session, group, embedding)
        for number, kept in merged.items():
            parcels[number].fate = Fate.TOUCHED if kept.fate is not Fate.REFUSED else None

    def _checked_embedding(self) -> str:
        if self._embedding is None:
            store = self._calls.health().store
            # Without a token that may see it, the store is not told.
            if self._embedder is None:
                self._embedding = ""
            elif store.embeddings:
                self._embedding = embedding_of(self._embedder, store)
            else:
                self._embedding = self._calls.embedding or self._embedder.name
        return self._embedding

    # -- duplicates --------------------------------------------------------------------

    def _find_duplicates(self, parcels: Sequence[Parcel], embedding: str) -> dict[int, Parcel]:
        """Notes which memory says the same; returns which parcels go into another one of the
        batch, by number. As if the chunks had come one by one."""
        rows = [(n, p) for n, p in enumerate(parcels) if p.vector is not None]
        if not rows or self._settings.duplicate_similarity > 1:
            return {}
        matrix = np.array([parcel.vector for _, parcel in rows], dtype=np.float32)
        matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
        near = matrix @ matrix.T >= self._settings.duplicate_similarity
        # Asked once for two attempts: where one call is let through at a time, asking again would
        # take the place of the write each time.
        asked = [parcel for _, parcel in rows if not parcel.known]
        for _, parcel in rows:
            parcel.known = False
        if asked:
            self._note_nearest(asked, embedding)
        merged: dict[int, Parcel] = {}
        kept: list[int] = []
        for at, (number, parcel) in enumerate(rows):
            if parcel.same_as:
                continue
            alike = (rows[k][1] for k in kept if near[at, k])
            other = next((one for one in alike if _say_the_same(one.chunk, parcel.chunk)), None)
            if other is None:
                kept.append(at)
            else:
                other.chunk = _raised(other.chunk, parcel.chunk)
                merged[number] = other
        return merged

    def _note_nearest(self, parcels: Sequence[Parcel], embedding: str) -> None:
        """Notes for each the id of a memory that says the same and is not of the same turns, or
        ""."""
        answer = self._search(parcels, embedding)
        if not _is_whole(answer.degraded):
            answer = self._search(parcels, embedding)  # a search may run out of time once
        if not _is_whole(answer.degraded) or len(answer.results) != len(parcels):
            for parcel in parcels:
                parcel.unchecked, parcel.same_as = True, ""
            return
        for parcel, hits in zip(parcels, answer.results, strict=True):
            # An attempt before may have said otherwise.
            parcel.unchecked, parcel.known = False, True
            alike = (hit.id for hit in hits.items if self._says_the_same(parcel.chunk, hit))
            parcel.same_as = next(alike, "")

    def _search(self, parcels: Sequence[Parcel], embedding: str) -> pb.QueryResponse:
        return self._read(
            vectors=[parcel.vector for parcel in parcels if parcel.vector is not None],
            mode=Mode.VECTOR,
            top_k=CANDIDATES,
            min_score=self._settings.duplicate_similarity,
            include=Include(content=True),
            embedding=embedding,
        )

    def _says_the_same(self, chunk: Chunk, hit: pb.Hit) -> bool:
        if hit.similarity < self._settings.duplicate_similarity:
            return False
        if not same_figures(chunk.content, hit.content):
            return False
        if not hit.metadata.HasField("seq"):
            return True
        seq = last = hit.metadata.seq
        if LAST_SEQ in hit.metadata.attributes:
            last = max(seq, hit.metadata.attributes[LAST_SEQ].int_value)
        return not chunk.overlaps(hit.session, hit.metadata.source, seq, last)

    # -- writing -----------------------------------------------------------------------

    def _write(self, session: str, group: Sequence[Parcel], embedding: str) -> None:
        space = Namespace(self._namespace.tenant, self._namespace.agent, session)
        try:
            answer = self._write_items(space, map(_item, group), embedding)
        except ClientError as error:
            if error.code != "NOT_FOUND" or not any(parcel.same_as for parcel in group):
                raise
            # A memory that was to be touched was forgotten meanwhile.
            for parcel in group:
                parcel.same_as = ""
            answer = self._write_items(space, map(_item, group), embedding)
        there: dict[str, Parcel] = {}
        again: list[Parcel] = []
        for parcel, result in zip(group, answer.results, strict=True):
            exists = result.outcome == pb.OUTCOME_EXISTS
            if exists and result.status == types_pb2.STATUS_ACTIVE:
                there[result.id] = parcel
            elif exists and parcel.begins_anew(result.status):
                again.append(parcel)
            else:
                parcel.fate = _FATES[result.outcome]
        if there:
            self._complete(space, there, embedding)
        if again:
            self._write(session, again, embedding)

    def _complete(self, space: Namespace, there: dict[str, Parcel], embedding: str) -> None:
        """Gives memories that are there what they lack: later turns of their window, a vector."""
        answer = self._read(
            ids=list(there), include=Include(content=True, vector=True), embedding=embedding
        )
        stored = {hit.id: hit for hit in answer.items}
        if len(stored) < len(there) and not _is_whole(answer.degraded):
            raise ClientError(
                "UNAVAILABLE",
                f"memories cannot be read now ({answer.degraded.reason})",
                reason=answer.degraded.reason,
            )
        others: list[Parcel] = []
        changes: list[WriteItem] = []
        fates: list[tuple[Parcel, Fate]] = []
        for id_, parcel in there.items():
            hit, fate = stored.get(id_), Fate.EXISTING
            content = parcel.chunk.content
            known = hit is None or holds(hit.content, content) or grows(hit.content, content)
            if hit is not None and not known and parcel.partings < MOST_PARTINGS:
                parcel.chunk = told_apart(parcel.chunk, hit.content)
                parcel.partings += 1
                others.append(parcel)
                continue
            if hit is not None and grows(hit.content, content):
                changes.append(_growth(hit, parcel))
                fate = Fate.GROWN
            elif hit is not None and parcel.vector is not None and not hit.HasField("vector"):
                changes.append(LateVector(id_, parcel.vector, if_version=hit.version))
            fates.append((parcel, fate))
        if changes:
            self._write_items(space, changes, embedding)
        for parcel, fate in fates:
            parcel.fate = fate
        if others:
            self._write(space.session, others, embedding)

    def _write_items(
        self, space: Namespace, items: Iterable[WriteItem], embedding: str
    ) -> pb.WriteResponse:
        """A write whose repetition, item for item, gets the answer of the first: one that was
        carried out and not answered in time is not taken for somebody else's."""
        try:
            messages = [item_message(item) for item in items]
        except (TypeError, ValueError) as error:  # of a spill file of another version
            raise ClientError(
                "INVALID_ARGUMENT", f"cannot be sent: {error}", reason="NOT_SENDABLE"
            ) from error
        digest = hashlib.sha256(self._salt + f"{embedding}/{space.session}".encode())
        for message in messages:
            digest.update(hashlib.sha256(message.SerializeToString(deterministic=True)).digest())
        answer = self._calls.write(
            space, messages, embedding=embedding, request_id=f"ingest-{digest.hexdigest()[:32]}"
        )
        self._position = answer.position
        return answer

    def _read(self, **asked: Any) -> pb.QueryResponse:
        """A query that sees what this sender wrote."""
        space = Namespace(self._namespace.tenant, self._namespace.agent)
        try:
            return self._calls.query(space, min_position=self._position, **asked)
        except ClientError as error:
            if error.reason != _LOST or not self._position:
                raise
            self._position = ""
            return self._calls.query(space, **asked)


_FATES: Final = {
    pb.OUTCOME_CREATED: Fate.WRITTEN,
    pb.OUTCOME_TOUCHED: Fate.TOUCHED,
    pb.OUTCOME_EXISTS: Fate.EXISTING,
}


def _item(parcel: Parcel) -> WriteItem:
    chunk = parcel.chunk
    if parcel.same_as:
        return Touch(parcel.same_as, ts=chunk.ts, importance=chunk.importance)
    return chunk.memory(parcel.vector)


def _growth(hit: pb.Hit, parcel: Parcel) -> Update:
    chunk = parcel.chunk
    metadata = chunk.metadata()._replace(
        ts=max(chunk.ts, hit.metadata.ts), importance=max(chunk.importance, hit.importance_stored)
    )
    named = [
        name
        for name in ("role", "category", "memory_type")
        if getattr(hit.metadata, name) and not getattr(metadata, name)
    ]
    return Update(
        hit.id,
        if_version=hit.version,
        content=chunk.content,
        summary=chunk.summary,
        vector=parcel.vector,
        clear_vector=parcel.vector is None,
        metadata=metadata,
        clear_fields=tuple(named),
    )


def _raised(chunk: Chunk, by: Chunk) -> Chunk:
    """As after a touch: time and importance only rise."""
    return replace(chunk, ts=max(chunk.ts, by.ts), importance=max(chunk.importance, by.importance))


def _say_the_same(chunk: Chunk, other: Chunk) -> bool:
    """Whether two chunks near each other do, and are not of the same turns."""
    if chunk.overlaps(other.session, other.source, other.seq, other.last_seq):
        return False
    return same_figures(chunk.content, other.content)


def _is_whole(degraded: types_pb2.Degraded) -> bool:
    """Whether an answer holds everything it should, as far as this client wrote it."""
    return degraded.level == 0 or degraded.level == 2 or degraded.reason in _WHOLE
