"""Query requests, and how long they take."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memsvc.client.filters import filter_message, parse_filter
from memsvc.client.messages import namespace_message
from memsvc.v1 import memory_service_pb2 as pb

TIMEOUT_S = 60.0


def query_request(
    namespace: str,
    vector: NDArray[np.float32] | None = None,
    *,
    k: int = 40,
    ef: int = 0,
    filters: dict[str, Any] | None = None,
    text: str = "",
    mode: pb.Mode.ValueType = pb.MODE_AUTO,
    numbers: bool = False,
    explain: bool = False,
) -> pb.QueryRequest:
    """``numbers``: the vector as repeated float instead of raw bytes. Without a bound on
    the similarity, so that k results come back."""
    request = pb.QueryRequest(
        namespace=namespace_message(namespace),
        top_k=k,
        ef_search=ef,
        min_score=-1.0,
        text=text,
        mode=mode,
    )
    if vector is not None:
        if numbers:
            request.vector.values.extend(vector.tolist())
        else:
            request.vector.data = np.ascontiguousarray(vector, "<f4").tobytes()
    if filters is not None:
        request.filters.CopyFrom(filter_message(parse_filter(filters)))
    if explain:
        request.include.explain = True
    return request


def timed(stub: Any, request: pb.QueryRequest) -> tuple[pb.QueryResponse, float]:
    """The answer, and seconds from the message to the parsed answer."""
    began = time.perf_counter()
    answer: pb.QueryResponse = stub.Query(request, timeout=TIMEOUT_S)
    return answer, time.perf_counter() - began


def plans(answers: list[pb.QueryResponse]) -> Counter[str]:
    """How often each plan was chosen for a sealed segment."""
    return Counter(
        part.plan for answer in answers for part in answer.explain if part.part != "tail"
    )


def plan_text(counts: Counter[str]) -> str:
    """For a table."""
    return ", ".join(f"{name} {count}" for name, count in counts.most_common()) or "-"
