"""Random requests that meet each other: few names, few words, small whole-number vectors."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np

from memsvc.domain import filters as f
from memsvc.domain.types import (
    ForgetMode,
    ForgetRequest,
    Include,
    LateVector,
    Metadata,
    Mode,
    Namespace,
    NewMemory,
    QueryRequest,
    Status,
    Touch,
    TouchKind,
    Update,
    Vector,
    WriteItem,
    WriteRequest,
)
from memsvc.service import fingerprint
from tests.semantics.harness import DAY, DIMENSION, HOUR

WORDS = tuple(
    word
    for line in (
        "tea coffee prefers Ann Bern running runner project memsvc v1.2 /etc/hosts",
        "北京 东京 喜欢 咖啡 Café ＴＥＡ deadline Friday blue green",
    )
    for word in line.split()
)
TOPICS = ("food", "travel", "work", "")
ATTRIBUTES = ("city", "level", "tags", "done")  # the first two have columns
PLACES = (*(("acme", "a"),) * 8, ("acme", "b"), ("acme-corp", "a"))


class Generator:
    """Draws requests. ``ids`` are those given out so far."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.ids: list[str] = []

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def namespace(self) -> Namespace:
        tenant, agent = self.rng.choice(PLACES)
        return Namespace(tenant, agent, self.rng.choice(("s1", "s2", "")))

    def id(self) -> str:
        if self.chance(0.03) or not self.ids:
            junk = str(uuid.UUID(int=self.rng.getrandbits(128)))
            return self.rng.choice((junk, "nothing"))
        # Mostly recent ones, so that a memory has a long life.
        recent = self.ids[-30:] if self.chance(0.6) else self.ids
        return self.rng.choice(recent)

    def vector(self) -> Vector:
        while True:
            numbers = [self.rng.randint(-2, 2) for _ in range(DIMENSION)]
            if any(numbers):
                return np.array(numbers, np.float32)

    def text(self, most: int = 6) -> str:
        return " ".join(self.rng.choices(WORDS, k=self.rng.randint(1, most)))

    def time(self, now: int) -> int:
        return now + self.rng.choice((-40 * DAY, -DAY, -HOUR, 0, 0, 0, DAY))

    def ttl(self) -> int | None:
        return self.rng.choice((None, None, None, 0, HOUR, 6 * HOUR, 3 * DAY))

    def attribute(self) -> str | int | float | bool | tuple[str, ...]:
        return self.rng.choice(
            ("Bern", "Basel", "", 0, 1, 2, 1.0, 1.5, True, False, ("a", "b"), ("Bern",), ())
        )

    def metadata(self, now: int) -> Metadata:
        r = self.rng
        return Metadata(
            seq=r.choice((None, 0, 1, 2, 2**53 + 1)),
            role=r.choice(("", "user", "assistant")),
            ts=None if self.chance(0.5) else self.time(now),
            importance=r.choice((None, 0.0, 0.3, 0.5, 0.9, 1.0)),
            source=r.choice(("", "chat")),
            topic=r.choice(TOPICS),
            attributes={n: self.attribute() for n in ATTRIBUTES if self.chance(0.4)},
        )

    # -- write -------------------------------------------------------------------------

    def memory(self, now: int) -> NewMemory:
        long = "filler " * 40 if self.chance(0.1) else ""
        return NewMemory(
            content=self.rng.choice(("", long + self.text())),
            summary=self.text(),
            dedup_key=f"key {self.rng.randint(0, 30)}" if self.chance(0.3) else "",
            vector=None if self.chance(0.3) else self.vector(),
            metadata=self.metadata(now),
            ttl_ms=self.ttl(),
            status=Status.ACTIVE
            if self.chance(0.85)
            else self.rng.choice((Status.REVIEW, Status.ARCHIVED)),
        )

    def touch(self, now: int) -> Touch:
        return Touch(
            self.id(),
            ts=None if self.chance(0.6) else self.time(now),
            importance=self.rng.choice((None, 0.1, 0.8)),
            kind=self.rng.choice((TouchKind.SEEN, TouchKind.USED)),
        )

    def if_version(self) -> int:
        return self.rng.randint(1, 3) if self.chance(0.1) else 0

    def update(self, now: int) -> Update:
        kind = self.rng.choice(("text", "vector", "clear", "meta", "status", "nothing"))
        fields: dict[str, Any] = {}
        if kind == "text":
            fields["content"] = self.rng.choice((None, self.text(), ""))
            fields["summary"] = self.rng.choice((None, self.text(), ""))
        elif kind == "vector":
            fields["vector"] = self.vector()
        elif kind == "clear":
            fields["clear_vector"] = True
            fields["clear_fields"] = self.rng.choice(((), ("topic", "attributes.city"), ("seq",)))
        elif kind == "meta":
            fields["metadata"] = self.metadata(now)
        elif kind == "status":
            fields["status"] = Status(self.rng.randint(1, 5))
        ttl = self.ttl() if self.chance(0.3) else None
        return Update(self.id(), if_version=self.if_version(), ttl_ms=ttl, **fields)

    def item(self, now: int) -> WriteItem:
        draw = self.rng.random()
        if draw < 0.5:
            memory = self.memory(now)
            if not memory.content and self.chance(0.5):
                return NewMemory(content=self.text(), vector=memory.vector, ttl_ms=memory.ttl_ms)
            return memory
        if draw < 0.65:
            return self.touch(now)
        if draw < 0.85:
            return self.update(now)
        return LateVector(self.id(), self.vector(), self.if_version())

    def write(self, now: int) -> WriteRequest:
        count = self.rng.choice((1, 1, 2, 4, 8))
        items = tuple(self.item(now) for _ in range(count))
        namespace = self.namespace()
        request = WriteRequest(namespace, items)
        if not self.chance(0.2):
            return request
        request = WriteRequest(namespace, items, request_id=f"w{self.rng.randint(0, 8)}")
        return WriteRequest(
            namespace, items, request.request_id, fingerprint=fingerprint.of_write(request)
        )

    # -- forget ------------------------------------------------------------------------

    def forget(self, now: int) -> ForgetRequest:
        by_filter = self.chance(0.35)
        ids: Sequence[str] = () if by_filter else [self.id() for _ in range(self.rng.randint(1, 4))]
        hard = self.chance(0.4)
        filters = self.filter(now) if by_filter or self.chance(0.2) else None
        if by_filter and hard:
            # Or little would be left after a while.
            filters = f.And((f.Condition("topic", f.Equals("food")), filters or f.And(())))
        fields: dict[str, Any] = {
            "namespace": self.namespace(),
            "ids": tuple(ids),
            "filters": filters,
            "mode": ForgetMode.HARD if hard else ForgetMode.DECAY,
            "factor": self.rng.choice((0.0, 0.5, 0.9)),
            "validate_only": self.chance(0.2),
            "request_id": f"f{self.rng.randint(0, 5)}" if self.chance(0.3) else "",
        }
        request = ForgetRequest(**fields)
        return ForgetRequest(**fields, fingerprint=fingerprint.of_forget(request))

    # -- filters -----------------------------------------------------------------------

    def filter(self, now: int, depth: int = 0) -> f.Filter:
        draw = self.rng.random()
        if depth < 2 and draw < 0.3:
            inner = tuple(self.filter(now, depth + 1) for _ in range(self.rng.randint(1, 3)))
            return f.And(inner) if self.chance(0.5) else f.Or(inner)
        if depth < 2 and draw < 0.4:
            return f.Not(self.filter(now, depth + 1))
        return self.condition(now)

    def condition(self, now: int) -> f.Condition:
        r = self.rng
        name = r.choice(
            ("status", "session", "ts", "importance", "role", "topic", "seq", "attributes.city",
             "attributes.level", "attributes.tags", "attributes.done")
        )  # fmt: skip
        if self.chance(0.1):
            return f.Condition(name, f.Exists(self.chance(0.5)))
        if name == "status":
            names = ("active", "review", "archived", "superseded", "expired", "forgotten")
            if self.chance(0.5):
                return f.Condition(name, f.Equals(r.choice(names)))
            return f.Condition(name, f.In(tuple(r.sample(names, 3))))
        if name in ("ts", "importance", "seq"):
            value: float = {"ts": self.time(now), "importance": 0.5, "seq": r.choice((1, 2.0))}[
                name
            ]
            return f.Condition(
                name, r.choice((f.Range(gte=value), f.Range(lt=value), f.Equals(value)))
            )
        if name.startswith("attributes."):
            value_ = self.attribute()
            if self.chance(0.3) and not isinstance(value_, bool | tuple):
                return f.Condition(name, r.choice((f.Range(gt=value_), f.Range(lte=value_))))
            if self.chance(0.4):
                return f.Condition(name, f.In((value_, self.attribute())))
            return f.Condition(name, f.Equals(value_))
        values = {"session": ("s1", "s2"), "role": ("user", "assistant"), "topic": TOPICS[:3]}[name]
        if self.chance(0.3):
            return f.Condition(name, f.In(values[:2]))
        return f.Condition(name, f.Equals(r.choice(values)))

    # -- query -------------------------------------------------------------------------

    def query(self, now: int) -> QueryRequest:
        r = self.rng
        kind = r.choice(("vector", "vectors", "text", "hybrid", "words", "browse", "ids"))
        vectors: tuple[Vector, ...] = ()
        if kind in ("vector", "hybrid", "words"):
            vectors = (self.vector(),)
        elif kind == "vectors":
            vectors = tuple(self.vector() for _ in range(3))
        return QueryRequest(
            namespace=self.namespace(),
            vectors=vectors,
            many=kind == "vectors",
            text=self.text(3) if kind in ("text", "hybrid", "words") else "",
            ids=tuple(self.id() for _ in range(r.randint(1, 6))) if kind == "ids" else (),
            top_k=r.choice((0, 1, 3, 10, 100)),
            min_score=r.choice((None, -1.0, 0.0, 0.4)),
            filters=self.filter(now) if self.chance(0.5) else None,
            mode={"browse": Mode.BROWSE, "words": Mode.KEYWORD}.get(kind, Mode.AUTO),
            as_of=self.time(now) if self.chance(0.15) else None,
            include=Include(content=self.chance(0.3), vector=self.chance(0.3)),
        )
