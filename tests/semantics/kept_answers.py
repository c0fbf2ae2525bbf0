"""Settings that keep answers, and how often kept ones were given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memsvc.domain.errors import MemsvcError
from memsvc.domain.types import Caller, QueryRequest
from memsvc.rpc.answers import query_response
from memsvc.service.api import Control
from memsvc.service.node import Node
from memsvc.service.querying import QueryService
from tests.semantics.harness import World

CACHE: dict[str, Any] = {"query__cache": True, "query__cache_ms": 600_000}


def told(service: QueryService, caller: Caller, request: QueryRequest) -> bytes | str:
    """The serialised answer, or why there is none."""
    try:
        return query_response(service.query(caller, request, Control()))
    except MemsvcError as error:
        return f"{error.code} {error}"


def hits_and_misses(node: Node) -> tuple[float, float]:
    """How often an answer was there, and was not."""
    found = {
        labels["result"]: value
        for name, labels, value in node.metrics.samples()
        if name == "memsvc_query_cache_total"
    }
    return found.get("hit", 0.0), found.get("miss", 0.0)


def hits_of(world: World, call: Callable[[], object]) -> float:
    """How many kept answers a call was given."""
    before, _ = hits_and_misses(world.node)
    call()
    return hits_and_misses(world.node)[0] - before
