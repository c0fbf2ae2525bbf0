"""Requests in JSON, and their conversion to domain requests.

Field names are those of the protos. Importable without a web server: embedded use and the
command line read the same objects. What is refused here is only what a domain request
cannot express; lengths and ranges are checked on the domain request.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError, WithJsonSchema, model_validator

from memsvc.domain import limits
from memsvc.domain import types as t
from memsvc.domain.errors import InvalidArgument, Violation
from memsvc.domain.filters import Filter
from memsvc.http import fields as ft
from memsvc.http.fields import Body
from memsvc.http.filters import to_filter
from memsvc.http.items import ItemBody
from memsvc.http.refusals import from_pydantic
from memsvc.service import fingerprint
from memsvc.service.edge import refusal

B = TypeVar("B", bound=Body)

_DEFAULT_RANK = t.RankOptions()
_FILTER_REF = {"$ref": "#/components/schemas/Filter"}
FilterObject = Annotated[Any, WithJsonSchema(_FILTER_REF)]


class NamespaceBody(Body):
    """Where a memory lives; may also be written [tenant, agent] or [tenant, agent, session]."""

    tenant: str = Field(description="Customer or installation. Required.")
    agent: str = Field(description="Agent or end user within the tenant. Required.")
    session: str | None = Field(None, description="Conversation. A Query never filters by it.")

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, value: object) -> object:
        if isinstance(value, list | tuple) and len(value) in (2, 3):
            return dict(zip(("tenant", "agent", "session"), value, strict=False))
        if isinstance(value, dict | NamespaceBody):
            return value
        raise ValueError("must be [tenant, agent, session] or an object with these fields")

    def to_domain(self) -> t.Namespace:
        """The same as a domain type."""
        return t.Namespace(self.tenant, self.agent, self.session or "")


class WriteBody(Body):
    """A batch of changes in one namespace: all of them are applied, or none."""

    namespace: NamespaceBody
    request_id: str | None = Field(None, description="A repeat within 24 h changes nothing.")
    embedding: str | None = Field(None, description="Model that made the vectors.")
    items: list[ItemBody] = Field(
        description="1 to 1,000, applied in order.", max_length=limits.MAX_ITEMS
    )

    def to_domain(self) -> t.WriteRequest:
        """Raises InvalidArgument with every violation found."""
        found: list[Violation] = []
        items = [item.to_item(f"items[{i}]", found) for i, item in enumerate(self.items)]
        if found:
            raise refusal(found)
        values: dict[str, Any] = {
            "namespace": self.namespace.to_domain(),
            "items": tuple(item for item in items if item is not None),
            "request_id": self.request_id or "",
            "embedding": self.embedding or "",
        }
        request = t.WriteRequest(**values)
        if not request.request_id:
            return request
        return t.WriteRequest(**values, fingerprint=fingerprint.of_write(request))


class RankBody(Body):
    """Re-ranking on the server: similarity, importance and freshness, weighted."""

    similarity_weight: float | None = Field(None, description="0 to 1. Default 0.60.")
    importance_weight: float | None = Field(None, description="0 to 1. Default 0.25.")
    freshness_weight: float | None = Field(None, description="0 to 1. Default 0.15.")
    half_life_ms: ft.Int64 | None = Field(None, description="Default 30 days.")
    max_per_topic: ft.UInt32 | None = Field(None, description="Default 3, 0 = no cap.")
    token_budget: ft.UInt32 | None = Field(None, description="Default 1200, 0 = no limit.")
    keep: ft.UInt32 | None = Field(None, description="1 to 1,000: most items kept. Default 12.")

    def to_domain(self) -> t.RankOptions:
        """The same as a domain type."""
        given = {name: value for name, value in self if value is not None}
        given["half_life_ms"] = self.half_life_ms or _DEFAULT_RANK.half_life_ms
        return t.RankOptions(**given)


class IncludeBody(Body):
    """What to return beside the usual."""

    content: bool = False
    vector: bool = False
    explain: bool = False

    def to_domain(self) -> t.Include:
        """The same as a domain type."""
        return t.Include(self.content, self.vector, self.explain)


class QueryBody(Body):
    """A search: by vector, text, both, ids, or filters alone (newest first)."""

    namespace: NamespaceBody
    vector: ft.Numbers | None = None
    vectors: list[ft.Numbers] | None = Field(
        None, description="Many at once, at most 64.", max_length=limits.MAX_VECTORS
    )
    text: str | None = Field(None, description="Words; literal text, no query syntax.")
    ids: list[str] | None = Field(
        None, description="Read these memories, at most 1,000.", max_length=limits.MAX_IDS
    )
    top_k: ft.UInt32 | None = None
    min_score: float | None = Field(None, description="Least cosine similarity, -1 to 1.")
    filters: FilterObject | None = None
    mode: ft.ModeName = t.Mode.AUTO
    ef_search: ft.UInt32 | None = None
    min_position: str | None = Field(None, description="Answer from this position or later.")
    embedding: str | None = None
    as_of: ft.Time | None = Field(None, description="Decay and freshness as of then, UTC ms.")
    rank: RankBody | None = None
    include: IncludeBody | None = None
    page_token: str | None = None
    fallback: bool = Field(
        False,
        description="Set by a router that asks the primary because no replica can answer: at "
        "most 20 items, and the answer is marked with level 2.",
    )

    def to_domain(self) -> t.QueryRequest:
        """Raises InvalidArgument with every violation found."""
        found: list[Violation] = []
        filters = _filters(self.filters, found)
        if self.vector is not None and self.vectors:
            found.append(Violation("vectors", "give vector or vectors, not both"))
        if found:
            raise refusal(found)
        listed = self.vectors or ([] if self.vector is None else [self.vector])
        return t.QueryRequest(
            namespace=self.namespace.to_domain(),
            vectors=tuple(ft.to_vector(numbers) for numbers in listed),
            many=bool(self.vectors),
            text=self.text or "",
            ids=tuple(self.ids or ()),
            top_k=self.top_k or 0,
            min_score=self.min_score,
            filters=filters,
            mode=self.mode,
            ef_search=self.ef_search or 0,
            min_position=self.min_position or "",
            embedding=self.embedding or "",
            as_of=self.as_of,
            rank=None if self.rank is None else self.rank.to_domain(),
            include=t.Include() if self.include is None else self.include.to_domain(),
            page_token=self.page_token or "",
            fallback=self.fallback,
        )


class ForgetBody(Body):
    """What to forget: ids or filters; both mean and."""

    namespace: NamespaceBody
    request_id: str | None = Field(None, description="A repeat within 24 h changes nothing.")
    ids: list[str] | None = Field(
        None, description="At most 10,000.", max_length=limits.MAX_FORGET_IDS
    )
    filters: FilterObject | None = None
    mode: ft.ForgetModeName = t.ForgetMode.DECAY
    factor: float | None = Field(None, description="For DECAY: 0 to below 1. Default 0.5.")
    validate_only: bool = Field(False, description="Only tell what would be affected.")
    reason: str | None = Field(None, description="Why, for the audit.")

    def to_domain(self) -> t.ForgetRequest:
        """Raises InvalidArgument with every violation found."""
        found: list[Violation] = []
        filters = _filters(self.filters, found)
        if found:
            raise refusal(found)
        values: dict[str, Any] = {
            "namespace": self.namespace.to_domain(),
            "ids": tuple(self.ids or ()),
            "filters": filters,
            "mode": self.mode,
            "validate_only": self.validate_only,
            "request_id": self.request_id or "",
            "reason": self.reason or "",
        }
        if self.factor is not None:
            values["factor"] = self.factor
        request = t.ForgetRequest(**values)
        if not request.request_id:
            return request
        return t.ForgetRequest(**values, fingerprint=fingerprint.of_forget(request))


def _filters(value: object, found: list[Violation]) -> Filter | None:
    return None if value is None else to_filter(value, "filters", found)


def read_write(data: bytes | str | dict[str, Any]) -> t.WriteRequest:
    """A Write from JSON text or from a dict. Raises InvalidArgument."""
    return _read(WriteBody, data).to_domain()


def read_query(data: bytes | str | dict[str, Any]) -> t.QueryRequest:
    """A Query from JSON text or from a dict. Raises InvalidArgument."""
    return _read(QueryBody, data).to_domain()


def read_forget(data: bytes | str | dict[str, Any]) -> t.ForgetRequest:
    """A Forget from JSON text or from a dict. Raises InvalidArgument."""
    return _read(ForgetBody, data).to_domain()


def _read(kind: type[B], data: bytes | str | dict[str, Any]) -> B:
    try:
        if isinstance(data, dict):
            return kind.model_validate(data)
        return kind.model_validate_json(data)
    except ValidationError as error:
        raise from_pydantic(kind, error) from None
    except (RecursionError, ValueError):
        # A number of thousands of digits, for one.
        raise InvalidArgument("the body is not usable JSON", reason="MALFORMED_REQUEST") from None
