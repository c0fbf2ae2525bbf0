"""The five cases of the self-check, in a corner of the store that belongs to this run.

What they look for is a service that answers and is wrong: such a fault shows in no log.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from memsvc.cli.failures import hint_of
from memsvc.client import (
    ClientError,
    Embedder,
    ForgetMode,
    MemoryClient,
    Metadata,
    Mode,
    NewMemory,
)
from memsvc.domain.types import Namespace, Vector
from memsvc.v1 import memory_service_pb2 as pb

TARGET: Final = "The quarterly report goes to Ingrid on the last Friday of March."
PARAPHRASE: Final = "When does Ingrid get the report for the quarter?"
OTHERS: Final = (
    "Water the orchids on the balcony twice a week.",
    "The spare key of the cabin hangs behind the boiler.",
    "Tomas plays the cello in a small orchestra.",
    "The night train to Lisbon leaves from platform four.",
)
DAY_MS: Final = 86_400_000
TTL_MS: Final = 3_600_000
"""Should the run be broken off, what it wrote expires by itself within the hour."""
SAME_TEXT: Final = 0.99


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one case. ``by`` tells how memories were looked for."""

    name: str
    ok: bool
    by: str
    ms: float
    detail: str
    hint: str = ""

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class Wrong(Exception):
    """A case found a fault."""

    def __init__(self, detail: str, hint: str) -> None:
        super().__init__(detail)
        self.hint = hint


def seeded_vector(text: str, dimension: int) -> Vector:
    """A vector that stands for a text when there is no model: always the same, and nearly at
    right angles to that of any other text."""
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    return np.random.default_rng(seed).standard_normal(dimension).astype(np.float32)


def _vectors(
    texts: tuple[str, ...], embedder: Embedder | None, dimension: int
) -> dict[str, Vector]:
    if embedder is not None:
        return dict(zip(texts, embedder.embed(texts), strict=True))
    return {text: seeded_vector(text, dimension) for text in texts} if dimension else {}


class Examination:
    """Runs the cases one after the other. ``dimension`` 0 = words only."""

    def __init__(
        self,
        client: MemoryClient,
        namespace: Namespace,
        embedder: Embedder | None,
        dimension: int,
        now_ms: int,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._embedder = embedder
        # Made before the first case, so that loading a model is in nobody's time.
        self._vectors = _vectors((TARGET, PARAPHRASE, *OTHERS), embedder, dimension)
        # Times as a conversation has them, days apart; the target lies between others.
        self._times = [now_ms - (2 + 3 * i) * DAY_MS for i in range(len(OTHERS) + 1)]
        self._target_ts = self._times[1]
        self._position = ""
        self.notes: list[str] = []
        self.target = ""
        self.denied = False
        """The token, or the node, may not write: nothing was written, nothing is to be erased."""

    def run(self) -> Iterator[Finding]:
        """The five cases in order; after a failed write the others are not tried."""
        cases: tuple[tuple[str, Callable[[], tuple[str, str]]], ...] = (
            ("write one", self._write),
            ("recall by its own text", self._own_text),
            ("recall by a paraphrase", self._paraphrase),
            ("recall by time filter", self._time_filter),
            ("forget, then recall", self._forget),
        )
        for name, case in cases:
            if name != "write one" and not self.target:
                yield Finding(name, False, "-", 0.0, "not tried: nothing was written")
                continue
            start = time.perf_counter()
            by, detail, hint, ok = "-", "", "", False
            try:
                by, detail = case()
                ok = True
            except Wrong as wrong:
                detail, hint = str(wrong), wrong.hint
            except ClientError as error:
                detail, hint = f"{error.message} [{error.reason}]", hint_of(error)
                if not self.target and error.reason == "NOT_PRIMARY":
                    self.denied = True
                if not self.target and error.reason == "PERMISSION_DENIED":
                    self.denied = True
                    advice = "Say where it may read, write and forget: -n TENANT/AGENT"
                    hint = f"{hint} {advice}".strip()
            yield Finding(name, ok, by, (time.perf_counter() - start) * 1000, detail, hint)

    def clean_up(self) -> int:
        """Erases what the run wrote, and nothing else; how many memories that were."""
        answer = self._client.forget(
            self._namespace, filters=self._mine(), mode=ForgetMode.HARD, reason="self-check"
        )
        return int(answer.changed)

    def _mine(self) -> dict[str, object]:
        return {"session": self._namespace.session}

    def _query(self, **how: Any) -> pb.QueryResponse:
        filters: dict[str, object] = {**self._mine(), **how.pop("filters", {})}
        answer = self._client.query(
            self._namespace, filters=filters, min_position=self._position, **how
        )
        if answer.degraded.level:
            raise Wrong(
                f"the answer is degraded: level {answer.degraded.level}, {answer.degraded.reason}",
                "see `memsvc health` and `memsvc inspect --verify`; a forced level is taken back "
                "with `memsvc degrade auto`",
            )
        return answer

    def _first_is_target(self, answer: pb.QueryResponse, hint: str) -> pb.Hit:
        if not answer.items:
            raise Wrong("nothing was found", hint)
        if answer.items[0].id != self.target:
            raise Wrong(f"another memory came first: {answer.items[0].summary!r}", hint)
        return answer.items[0]

    def _write(self) -> tuple[str, str]:
        texts = (OTHERS[0], TARGET, *OTHERS[1:])
        items = [
            NewMemory(
                text,
                dedup_key=f"{self._namespace.session}:{number}",
                vector=self._vectors.get(text),
                metadata=Metadata(seq=number, ts=ts, source="doctor"),
                ttl_ms=TTL_MS,
            )
            for number, (text, ts) in enumerate(zip(texts, self._times, strict=True))
        ]
        answer = self._client.write(self._namespace, items)
        if any(one.outcome != pb.OUTCOME_CREATED for one in answer.results):
            raise Wrong("new memories were not answered with CREATED", "see the server's log")
        self.target, self._position = answer.results[1].id, answer.position
        again = self._client.write(self._namespace, items[1:2]).results[0]
        if again.outcome != pb.OUTCOME_EXISTS or again.id != self.target:
            raise Wrong(
                "a repeat with the same dedup_key was stored again",
                "agents that retry will fill the store with repeats; see the server's log",
            )
        return "id", f"{len(items)} written, a repeat was recognised"

    def _own_text(self) -> tuple[str, str]:
        words = self._query(text=TARGET, mode=Mode.KEYWORD, top_k=3)
        self._first_is_target(words, "words of a memory do not find it: the keyword index is wrong")
        vector = self._vectors.get(TARGET)
        if vector is None:
            return "keyword", "found first"
        answer = self._query(vector=vector, mode=Mode.VECTOR, top_k=3, min_score=0.9)
        hit = self._first_is_target(
            answer,
            "a vector does not find itself: check index.dimension, then the files with "
            "`memsvc inspect --verify`",
        )
        if hit.similarity < SAME_TEXT:
            raise Wrong(
                f"its own vector gives similarity {hit.similarity:.3f}, expected 1",
                "vectors are changed on the way in or out: are they of the right model and type?",
            )
        return "vector and keyword", f"found first, similarity {hit.similarity:.3f}"

    def _paraphrase(self) -> tuple[str, str]:
        if self._embedder is None:
            answer = self._query(text="Ingrid's quarterly reports", mode=Mode.KEYWORD, top_k=3)
            self._first_is_target(answer, "inflected words do not match: is it this version?")
            return "keyword", "found first by other forms of its words (no local embedder)"
        vector = self._vectors.get(PARAPHRASE)
        answer = self._query(
            vector=vector, mode=Mode.VECTOR, top_k=3, min_score=self._embedder.min_score
        )
        hit = self._first_is_target(
            answer,
            "meaning does not lead to it: were the stored vectors made by another model?",
        )
        if not self._query(vector=vector, mode=Mode.VECTOR, top_k=3).items:
            self.notes.append(
                f"this paraphrase has similarity {hit.similarity:.3f}, below the server's "
                "query.min_score: requests that set no min_score miss it (with this model "
                f"{self._embedder.min_score:g} fits)"
            )
        return "vector", f"found first, similarity {hit.similarity:.3f}"

    def _time_filter(self) -> tuple[str, str]:
        hint = "ts is in UTC milliseconds; is a time zone or a unit mixed up?"
        around = {"ts": {"gte": self._target_ts - DAY_MS, "lt": self._target_ts + DAY_MS}}
        found = self._query(filters=around, mode=Mode.BROWSE)
        if [hit.id for hit in found.items] != [self.target]:
            raise Wrong(f"expected 1 memory within two days, found {len(found.items)}", hint)
        words = self._query(text=TARGET, mode=Mode.KEYWORD, filters=around)
        if [hit.id for hit in words.items] != [self.target]:
            raise Wrong("a search by words does not keep to the time filter", hint)
        after = {"ts": {"gt": self._target_ts}}
        vector = self._vectors.get(TARGET)
        later = (
            self._query(text=TARGET, mode=Mode.KEYWORD, filters=after)
            if vector is None
            else self._query(vector=vector, mode=Mode.VECTOR, min_score=-1.0, filters=after)
        )
        if any(hit.metadata.ts <= self._target_ts for hit in later.items):
            raise Wrong("a search brings memories that the time filter excludes", hint)
        everything = self._query(mode=Mode.BROWSE)
        times = [hit.metadata.ts for hit in everything.items]
        if sorted(times, reverse=True) != times or len(times) != len(self._times):
            raise Wrong(f"expected {len(self._times)} memories, newest first: {times}", hint)
        by = "filter and keyword" if vector is None else "filter, keyword and vector"
        return by, "found alone between its neighbours in time"

    def _forget(self) -> tuple[str, str]:
        answer = self._client.forget(
            self._namespace, ids=[self.target], mode=ForgetMode.HARD, reason="self-check"
        )
        if answer.changed != 1:
            raise Wrong(f"expected 1 memory to be forgotten, not {answer.changed}", "see the log")
        self._position = answer.position
        searches: dict[str, dict[str, Any]] = {
            "id": {},
            "keyword": {"text": TARGET, "mode": Mode.KEYWORD},
            "browse": {"mode": Mode.BROWSE},
        }
        vector = self._vectors.get(TARGET)
        if vector is not None:
            searches["vector"] = {"vector": vector, "mode": Mode.VECTOR, "min_score": -1.0}
        for name, how in searches.items():
            if name == "id":
                found = self._client.query(
                    self._namespace, ids=[self.target], min_position=self._position
                )
            else:
                found = self._query(**how)
            if any(hit.id == self.target for hit in found.items):
                raise Wrong(
                    f"a forgotten memory is still found by {name}",
                    "do not rely on erasure here; report this with `memsvc inspect --memory "
                    f"{self.target}`",
                )
        return ", ".join(searches), "gone from every kind of search"
