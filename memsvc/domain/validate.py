"""Checks of whole requests before anything is done: all violations at once, by field."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from memsvc.domain import limits
from memsvc.domain.errors import InvalidArgument, Violation
from memsvc.domain.filters import ATTRIBUTE_NAME, Filter, normalise, text_fits
from memsvc.domain.labels import LABELS, labels_of
from memsvc.domain.types import (
    AttributeValue,
    ForgetMode,
    ForgetRequest,
    LateVector,
    Metadata,
    Mode,
    Namespace,
    NewMemory,
    QueryRequest,
    RankOptions,
    Status,
    Touch,
    Update,
    Vector,
    WriteRequest,
)

CLEARABLE = frozenset({"seq", *LABELS})
SETTABLE_STATUSES = frozenset(
    {Status.ACTIVE, Status.REVIEW, Status.ARCHIVED, Status.SUPERSEDED, Status.REJECTED}
)
INITIAL_STATUSES = frozenset({Status.UNSPECIFIED, Status.ACTIVE, Status.REVIEW, Status.ARCHIVED})
_INT64 = 1 << 63
_PLAIN_SQUARES = (1e-12, 1e30)
"""Squares of lengths between these leave no doubt, whatever float32 makes of them."""


class Checker:
    """Collects what is wrong with a request."""

    def __init__(self) -> None:
        self.found: list[Violation] = []

    def add(self, field: str, description: str) -> None:
        """Notes one violation."""
        self.found.append(Violation(field, description))

    def finish(self) -> None:
        """Raises InvalidArgument when anything was noted; at most 32 are told."""
        if self.found:
            first = self.found[0]
            raise InvalidArgument(
                f"{first.field}: {first.description}"
                + (f" (and {len(self.found) - 1} more)" if len(self.found) > 1 else ""),
                violations=tuple(self.found[:32]),
                hint="nothing was applied; correct the fields and send the request again",
                reason=_reason(self.found),
            )

    def text(self, field: str, value: str, most: int) -> None:
        """A string of at most ``most`` UTF-8 bytes."""
        if not text_fits(value, most):
            self.add(field, f"valid UTF-8 of at most {most} bytes")

    def name(self, field: str, value: str, most: int, *, required: bool) -> None:
        """A namespace segment."""
        if not value:
            if required:
                self.add(field, "is required")
            return
        self.text(field, value, most)
        if "/" in value:
            self.add(field, 'must not contain "/", which separates segments')
        if any(ch < " " or ch == "\x7f" for ch in value):
            self.add(field, "must not contain control characters")

    def time(self, field: str, value: int | None) -> None:
        """UTC milliseconds."""
        if value is not None and not 0 <= value <= limits.MAX_TIME_MS:
            self.add(field, f"UTC milliseconds from 0 to {limits.MAX_TIME_MS}")

    def share(self, field: str, value: float | None, low: float = 0.0, high: float = 1.0) -> None:
        """A finite number within bounds."""
        if value is not None and not (math.isfinite(value) and low <= value <= high):
            self.add(field, f"a number from {low:g} to {high:g}")

    def vector(self, field: str, vector: Vector | None, dimension: int) -> None:
        """A finite vector of the right dimension that has a direction."""
        if vector is None:
            return
        if vector.shape != (dimension,):
            self.add(
                field,
                f"dimension {vector.shape[0] if vector.ndim == 1 else vector.shape}, "
                f"expected {dimension} (index.dimension)",
            )
            return
        # One pass: the sum of squares in float64 is NaN or inf when any number is.
        wide = vector.astype(np.float64)
        squares = float(np.dot(wide, wide))
        if not math.isfinite(squares):
            self.add(field, "every number must be finite (no NaN, no infinity)")
        elif math.sqrt(squares) < limits.MIN_VECTOR_NORM:
            self.add(field, f"must have a length (L2) of at least {limits.MIN_VECTOR_NORM:g}")

    def filter(self, field: str, node: Filter | None) -> Filter | None:
        """The filter with status names as numbers."""
        return None if node is None else normalise(node, field, self.found)


def _reason(found: Iterable[Violation]) -> str | None:
    return (
        "DIMENSION_MISMATCH"
        if any(
            "expected" in v.description and v.description.startswith("dimension ") for v in found
        )
        else None
    )


def check_namespace(namespace: Namespace, checker: Checker) -> None:
    """tenant and agent given, no separators, no control characters, within bounds."""
    checker.name("namespace.tenant", namespace.tenant, limits.MAX_NAME_BYTES, required=True)
    checker.name("namespace.agent", namespace.agent, limits.MAX_NAME_BYTES, required=True)
    checker.name("namespace.session", namespace.session, limits.MAX_SESSION_BYTES, required=False)


def check_write(request: WriteRequest, dimension: int) -> None:
    """Raises InvalidArgument with every violation of a write request."""
    checker = Checker()
    check_namespace(request.namespace, checker)
    checker.text("request_id", request.request_id, limits.MAX_REQUEST_ID_BYTES)
    if not 1 <= len(request.items) <= limits.MAX_ITEMS:
        checker.add("items", f"1 to {limits.MAX_ITEMS} items, got {len(request.items)}")
        checker.finish()
    vectors = [
        item.vector
        for item in request.items
        if isinstance(item, NewMemory) and item.vector is not None
    ]
    sound = _plainly_sound(vectors, dimension)
    for number, item in enumerate(request.items):
        if isinstance(item, NewMemory):
            _check_memory(checker, f"items[{number}]", item, dimension, sound)
        else:
            _check_change(checker, f"items[{number}]", item, dimension)
    checker.finish()


def _plainly_sound(vectors: list[Vector], dimension: int) -> bool:
    """Whether all of these are what ``Checker.vector`` accepts, at one stroke; False also
    when it takes a closer look to tell. float32 is enough for lengths that are far from both
    bounds, and NaN is within none."""
    if not vectors or any(vector.shape != (dimension,) for vector in vectors):
        return False
    rows = np.concatenate(vectors).reshape(len(vectors), dimension)
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.einsum("ij,ij->i", rows, rows)
    return bool(((squares > _PLAIN_SQUARES[0]) & (squares < _PLAIN_SQUARES[1])).all())


def _check_change(
    checker: Checker, path: str, item: Touch | Update | LateVector, dimension: int
) -> None:
    if isinstance(item, Touch):
        path = f"{path}.touch"
        _check_id(checker, path, item.id)
        checker.time(f"{path}.ts", item.ts)
        checker.share(f"{path}.importance", item.importance)
    elif isinstance(item, LateVector):
        _check_id(checker, f"{path}.vector", item.id)
        checker.vector(f"{path}.vector.vector", item.vector, dimension)
    else:
        _check_update(checker, f"{path}.update", item, dimension)


def _check_id(checker: Checker, path: str, value: str) -> None:
    if not value:
        checker.add(f"{path}.id", "is required")
    checker.text(f"{path}.id", value, limits.MAX_ID_BYTES)


def _check_memory(
    checker: Checker, path: str, item: NewMemory, dimension: int, vectors_sound: bool
) -> None:
    """Large batches are made of memories, so paths are spelt out only of what may be wrong."""
    if not item.content.strip() and not item.summary.strip():
        checker.add(f"{path}.memory", "needs a content, a summary or both")
    for name, text, most in (
        ("content", item.content, limits.MAX_CONTENT_BYTES),
        ("summary", item.summary, limits.MAX_SUMMARY_BYTES),
        ("dedup_key", item.dedup_key, limits.MAX_DEDUP_KEY_BYTES),
    ):
        if not text_fits(text, most):
            checker.text(f"{path}.memory.{name}", text, most)
    if not vectors_sound:
        checker.vector(f"{path}.memory.vector", item.vector, dimension)
    _check_metadata(checker, path, item.metadata, ".memory.metadata")
    if item.ttl_ms is not None:
        _check_ttl(checker, f"{path}.memory.ttl_ms", item.ttl_ms)
    if item.status not in INITIAL_STATUSES:
        checker.add(f"{path}.memory.status", "ACTIVE, REVIEW or ARCHIVED")


def _check_update(checker: Checker, path: str, item: Update, dimension: int) -> None:
    _check_id(checker, path, item.id)
    if item.content is not None:
        checker.text(f"{path}.content", item.content, limits.MAX_CONTENT_BYTES)
    if item.summary is not None:
        checker.text(f"{path}.summary", item.summary, limits.MAX_SUMMARY_BYTES)
    checker.vector(f"{path}.vector", item.vector, dimension)
    if item.vector is not None and item.clear_vector:
        checker.add(f"{path}.clear_vector", "give a new vector or clear it, not both")
    _check_metadata(checker, path, item.metadata)
    _check_ttl(checker, f"{path}.ttl_ms", item.ttl_ms)
    if item.status not in SETTABLE_STATUSES | {Status.UNSPECIFIED}:
        checker.add(f"{path}.status", "EXPIRED and FORGOTTEN cannot be set")
    checker.text(f"{path}.reason", item.reason, limits.MAX_REASON_BYTES)
    if len(item.clear_fields) > limits.MAX_CLEAR_FIELDS:
        checker.add(f"{path}.clear_fields", f"at most {limits.MAX_CLEAR_FIELDS}")
    for name in item.clear_fields[: limits.MAX_CLEAR_FIELDS]:
        attribute = name.removeprefix("attributes.")
        if name not in CLEARABLE and (attribute == name or not ATTRIBUTE_NAME.match(attribute)):
            known = ", ".join(sorted(CLEARABLE))
            checker.add(f"{path}.clear_fields", f"one of {known} or attributes.NAME")


def _check_ttl(checker: Checker, path: str, ttl_ms: int | None) -> None:
    if ttl_ms is not None and not 0 <= ttl_ms <= limits.MAX_TTL_MS:
        checker.add(path, f"milliseconds from 0 (for ever) to {limits.MAX_TTL_MS}")


def _check_metadata(
    checker: Checker, path: str, metadata: Metadata, inner: str = ".metadata"
) -> None:
    seq, ts, importance = metadata.seq, metadata.ts, metadata.importance
    attributes = metadata.attributes
    if seq is not None and not -_INT64 <= seq < _INT64:
        checker.add(f"{path}{inner}.seq", "a signed 64-bit number")
    if ts is not None:
        checker.time(f"{path}{inner}.ts", ts)
    if importance is not None:
        checker.share(f"{path}{inner}.importance", importance)
    for label, value in zip(LABELS, labels_of(metadata), strict=True):
        if value and not text_fits(value, limits.MAX_LABEL_BYTES):
            checker.text(f"{path}{inner}.{label}", value, limits.MAX_LABEL_BYTES)
    if not attributes:
        return
    path = f"{path}{inner}.attributes"
    if len(attributes) > limits.MAX_ATTRIBUTES:
        checker.add(path, f"at most {limits.MAX_ATTRIBUTES} attributes")
        return
    for name, attribute in attributes.items():
        if not ATTRIBUTE_NAME.match(name):
            checker.add(path, "attribute names are 1 to 64 of [A-Za-z0-9_.-]")
        else:
            _check_attribute(checker, f"{path}.{name}", attribute)


def _check_attribute(checker: Checker, path: str, value: AttributeValue) -> None:
    if isinstance(value, str):
        checker.text(path, value, limits.MAX_ATTRIBUTE_VALUE_BYTES)
    elif isinstance(value, tuple):
        if len(value) > limits.MAX_ATTRIBUTE_LIST:
            checker.add(path, f"at most {limits.MAX_ATTRIBUTE_LIST} strings")
        for member in value[: limits.MAX_ATTRIBUTE_LIST]:
            checker.text(path, member, limits.MAX_ATTRIBUTE_VALUE_BYTES)
    elif isinstance(value, float):
        if not math.isfinite(value):
            checker.add(path, "a finite number")
    elif not isinstance(value, bool) and not -_INT64 <= value < _INT64:
        checker.add(path, "a signed 64-bit number")


def check_query(
    request: QueryRequest, dimension: int, max_top_k: int, has_words: bool
) -> tuple[Filter | None, Mode]:
    """Raises InvalidArgument; gives the normalised filter and the mode that answers.

    ``has_words`` tells whether the text has any term to search for.
    """
    checker = Checker()
    check_namespace(request.namespace, checker)
    if len(request.vectors) > limits.MAX_VECTORS:
        checker.add("vectors", f"at most {limits.MAX_VECTORS} vectors")
    for number, vector in enumerate(request.vectors[: limits.MAX_VECTORS]):
        checker.vector(f"vectors[{number}]" if request.many else "vector", vector, dimension)
    checker.text("text", request.text, limits.MAX_TEXT_BYTES)
    if len(request.ids) > limits.MAX_IDS:
        checker.add("ids", f"at most {limits.MAX_IDS} ids")
    for number, id_text in enumerate(request.ids[: limits.MAX_IDS]):
        checker.text(f"ids[{number}]", id_text, limits.MAX_ID_BYTES)
    if not 0 <= request.top_k <= max_top_k:
        checker.add("top_k", f"1 to {max_top_k} (query.max_top_k), 0 for the default")
    checker.share("min_score", request.min_score, -1.0, 1.0)
    if not 0 <= request.ef_search <= limits.MAX_EF_SEARCH:
        checker.add("ef_search", f"1 to {limits.MAX_EF_SEARCH}, 0 for the default")
    checker.text("min_position", request.min_position, limits.MAX_POSITION_BYTES)
    checker.text("page_token", request.page_token, limits.MAX_PAGE_TOKEN_BYTES)
    checker.text("embedding", request.embedding, limits.MAX_EMBEDDING_BYTES)
    checker.time("as_of", request.as_of)
    if request.rank is not None:
        _check_rank(checker, request.rank)
    filters = checker.filter("filters", request.filters)
    mode = _mode(checker, request, has_words)
    checker.finish()
    return filters, mode


def _check_rank(checker: Checker, rank: RankOptions) -> None:
    for name in ("similarity_weight", "importance_weight", "freshness_weight"):
        checker.share(f"rank.{name}", getattr(rank, name))
    if not 0 <= rank.half_life_ms <= limits.MAX_TTL_MS:
        checker.add("rank.half_life_ms", f"milliseconds from 0 to {limits.MAX_TTL_MS}")
    if not 1 <= rank.keep <= limits.MAX_IDS:
        checker.add("rank.keep", f"1 to {limits.MAX_IDS}")


def _mode(checker: Checker, request: QueryRequest, has_words: bool) -> Mode:
    mode, vectors = request.mode, bool(request.vectors)
    if request.ids:
        for field, given in (
            ("vector", vectors),
            ("text", bool(request.text)),
            ("page_token", bool(request.page_token)),
            ("rank", request.rank is not None),
        ):
            if given:
                checker.add(field, "cannot be combined with ids")
        if mode not in (Mode.AUTO, Mode.BROWSE):
            checker.add("mode", "leave it out when ids are given")
        return Mode.BROWSE
    if request.many and not vectors:
        checker.add("vectors", "must not be empty")
    if request.text and not has_words and not vectors and request.filters is None:
        checker.add(
            "text", "has no letter or digit to search for; give words, a vector, ids or filters"
        )
    if mode in (Mode.VECTOR, Mode.HYBRID) and not vectors:
        checker.add("vector", f"mode {mode.name} needs a vector")
    if mode in (Mode.KEYWORD, Mode.HYBRID) and not has_words:
        checker.add("text", f"mode {mode.name} needs a text with a letter or digit")
    if request.page_token and (vectors or has_words):
        checker.add("page_token", "only BROWSE has pages")
    if mode is Mode.BROWSE and request.many:
        checker.add("vectors", "BROWSE takes no vectors")
    elif mode is Mode.BROWSE and vectors:
        checker.add("vector", "BROWSE takes no vector")
    if mode is not Mode.AUTO:
        return mode
    if vectors:
        return Mode.HYBRID if has_words else Mode.VECTOR
    if has_words:
        return Mode.KEYWORD
    if request.filters is None and not request.page_token:
        checker.add("", "give a vector, a text, ids or filters (or mode BROWSE)")
    return Mode.BROWSE


def check_forget(request: ForgetRequest) -> Filter | None:
    """Raises InvalidArgument; gives the normalised filter."""
    checker = Checker()
    check_namespace(request.namespace, checker)
    checker.text("request_id", request.request_id, limits.MAX_REQUEST_ID_BYTES)
    checker.text("reason", request.reason, limits.MAX_REASON_BYTES)
    if not request.ids and request.filters is None:
        checker.add("ids", "give ids or filters; an empty selection is refused")
    if len(request.ids) > limits.MAX_FORGET_IDS:
        checker.add("ids", f"at most {limits.MAX_FORGET_IDS} ids")
    for number, id_text in enumerate(request.ids[: limits.MAX_FORGET_IDS]):
        checker.text(f"ids[{number}]", id_text, limits.MAX_ID_BYTES)
    if request.mode is ForgetMode.DECAY and not (
        math.isfinite(request.factor) and 0.0 <= request.factor < 1.0
    ):
        checker.add("factor", "a number from 0 to below 1")
    filters = checker.filter("filters", request.filters)
    checker.finish()
    return filters
