"""The four calls as Python functions, whoever they go to."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from types import TracebackType
from typing import Self, TypeVar

from memsvc.client.connection import Timeouts
from memsvc.client.messages import (
    FilterLike,
    NamespaceLike,
    VectorLike,
    any_filter,
    item_message,
    namespace_message,
    rank_message,
    vector_message,
)
from memsvc.domain.types import ForgetMode, Include, Mode, RankOptions, WriteItem
from memsvc.v1 import memory_service_pb2 as pb

NO_INCLUDE = Include()


class MemoryCalls(ABC):
    """Python values in, messages of ``memsvc.v1`` out. Every call raises ClientError when the
    service says no, or nobody answers. A namespace is a ``Namespace`` or a text,
    "tenant/agent" or "tenant/agent/session"."""

    def __init__(self, timeouts: Timeouts | None, embedding: str) -> None:
        """``embedding`` names the model of all vectors; empty = the store's default one."""
        self.timeouts = timeouts or Timeouts()
        self.embedding = embedding

    @abstractmethod
    def _write(self, request: pb.WriteRequest, timeout: float) -> pb.WriteResponse: ...

    @abstractmethod
    def _query(self, request: pb.QueryRequest, timeout: float) -> pb.QueryResponse: ...

    @abstractmethod
    def _forget(self, request: pb.ForgetRequest, timeout: float) -> pb.ForgetResponse: ...

    @abstractmethod
    def health(self, *, timeout: float | None = None) -> pb.HealthResponse:
        """How the node is. Needs no token; without one only readiness is told."""

    @abstractmethod
    def close(self) -> None:
        """Closes the connections; calls in flight are broken off."""

    def write(
        self,
        namespace: NamespaceLike,
        items: Iterable[WriteItem | pb.WriteItem],
        *,
        request_id: str | None = None,
        embedding: str | None = None,
        timeout: float | None = None,
    ) -> pb.WriteResponse:
        """Applies 1 to 1,000 items, all or none; returns when they are durable.

        ``request_id`` None makes a fresh one, so that retries of this very call are safe;
        give your own to be safe across restarts of the client. ``embedding`` None = that of
        the client. ``timeout`` in seconds.
        """
        request = pb.WriteRequest(
            namespace=namespace_message(namespace),
            request_id=_request_id(request_id),
            embedding=self.embedding if embedding is None else embedding,
            items=[one if isinstance(one, pb.WriteItem) else item_message(one) for one in items],
        )
        return self._write(request, timeout or self.timeouts.write)

    def query(
        self,
        namespace: NamespaceLike,
        *,
        text: str = "",
        vector: VectorLike | None = None,
        vectors: Sequence[VectorLike] = (),
        ids: Iterable[str] = (),
        filters: FilterLike | None = None,
        mode: Mode = Mode.AUTO,
        top_k: int = 0,
        min_score: float | None = None,
        ef_search: int = 0,
        min_position: str = "",
        as_of: int | None = None,
        rank: RankOptions | None = None,
        include: Include = NO_INCLUDE,
        page_token: str = "",
        embedding: str | None = None,
        timeout: float | None = None,
    ) -> pb.QueryResponse:
        """Finds memories by meaning (vector), words (text), both, ids, or filters alone.

        0, "" and None mean "as the service is set" (``embedding`` None: as the client is).
        ``as_of`` is UTC milliseconds. For many ``vectors`` the answer stands in ``results``,
        otherwise in ``items``.
        """
        request = pb.QueryRequest(
            namespace=namespace_message(namespace),
            vector=None if vector is None else vector_message(vector),
            vectors=[vector_message(one) for one in vectors],
            text=text,
            ids=_ids(ids),
            top_k=top_k,
            min_score=min_score,
            filters=None if filters is None else any_filter(filters),
            mode=pb.Mode.ValueType(_member(Mode, mode)),
            ef_search=ef_search,
            min_position=min_position,
            embedding=self.embedding if embedding is None else embedding,
            as_of=as_of,
            rank=None if rank is None else rank_message(rank),
            page_token=page_token,
        )
        if include != NO_INCLUDE:
            request.include.CopyFrom(
                pb.Include(content=include.content, vector=include.vector, explain=include.explain)
            )
        return self._query(request, timeout or self.timeouts.read)

    def browse(
        self,
        namespace: NamespaceLike,
        *,
        filters: FilterLike | None = None,
        include: Include = NO_INCLUDE,
        page_size: int = 0,
    ) -> Iterator[pb.Hit]:
        """All visible memories that match, newest first, page by page.

        ``page_size`` 0 = the server's query.default_top_k; at most its query.max_top_k.
        """
        page_token = ""
        while True:
            answer = self.query(
                namespace,
                filters=filters,
                mode=Mode.BROWSE,
                top_k=page_size,
                include=include,
                page_token=page_token,
            )
            yield from answer.items
            page_token = answer.next_page_token
            if not page_token:
                return

    def forget(
        self,
        namespace: NamespaceLike,
        *,
        ids: Iterable[str] = (),
        filters: FilterLike | None = None,
        mode: ForgetMode = ForgetMode.DECAY,
        factor: float | None = None,
        validate_only: bool = False,
        reason: str = "",
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> pb.ForgetResponse:
        """Erases memories (HARD) or multiplies their importance by ``factor`` (DECAY).

        Give ids, filters, or both (which mean "and"). ``validate_only`` only tells what
        would be affected. ``request_id`` as in write.
        """
        request = pb.ForgetRequest(
            namespace=namespace_message(namespace),
            request_id="" if validate_only else _request_id(request_id),
            ids=_ids(ids),
            filters=None if filters is None else any_filter(filters),
            mode=pb.ForgetMode.ValueType(_member(ForgetMode, mode)),
            factor=factor,
            validate_only=validate_only,
            reason=reason,
        )
        return self._forget(request, timeout or self.timeouts.write)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


E = TypeVar("E", bound=IntEnum)


def _member(kind: type[E], given: E) -> E:
    """The value itself; TypeError for a name as text, which HTTP takes and Python does not."""
    if isinstance(given, str):
        raise TypeError(f"mode: expected {kind.__name__}.{given.upper()}, not {given!r}")
    return given


def _ids(given: Iterable[str]) -> Iterable[str]:
    """As given; TypeError for a single text, which would be taken for a list of its letters."""
    if isinstance(given, str):
        raise TypeError(f"ids: expected a list of ids, not the text {given!r:.80}")
    return given


def _request_id(given: str | None) -> str:
    return uuid.uuid4().hex if given is None else given
