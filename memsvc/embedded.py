"""memsvc inside a program: the same calls without a network.

    import memsvc

    with memsvc.open("memories", dimension=512) as memory:
        memory.write(["acme", "helper", "s1"], [{"summary": "Ann likes tea", "vector": [...]}])
        memory.query(["acme", "helper"], text="tea")

Arguments and answers are those of the HTTP interface, as Python values.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from memsvc import pinning  # noqa: F401  (for its effect on numpy)
from memsvc.config import load
from memsvc.domain.errors import FailedPrecondition
from memsvc.domain.types import Caller
from memsvc.http import models, render
from memsvc.service.admin import AdminService
from memsvc.service.api import Control
from memsvc.service.node import Node

Namespace = Sequence[str] | Mapping[str, str]
"""[tenant, agent], [tenant, agent, session], or a mapping with these keys."""


class Embedded:
    """An open store. Safe for threads; one process may have a directory open.

    Every call raises memsvc.domain.errors.MemsvcError with code, reason, hint and
    violations, as the service would answer.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.admin = AdminService(node)
        self._closed = False

    def write(
        self, namespace: Namespace, items: Sequence[Mapping[str, Any]], **fields: Any
    ) -> dict[str, Any]:
        """Stores items as ``POST /v1/memory/write`` does; ``fields``: request_id,
        embedding."""
        self._check_open()
        body = {"namespace": _namespace(namespace), "items": list(items), **fields}
        request = models.read_write(body)
        return render.write_object(self.node.memory.write(Caller(), request, self._write_limit()))

    def query(self, namespace: Namespace, **fields: Any) -> dict[str, Any]:
        """Searches as ``POST /v1/memory/query`` does; ``fields``: vector, text, ids, top_k,
        min_score, filters, mode and the others of that call."""
        self._check_open()
        request = models.read_query({"namespace": _namespace(namespace), **fields})
        control = self._limit(self.node.settings.server.read_timeout_ms)
        return render.query_object(self.node.memory.query(Caller(), request, control))

    def forget(self, namespace: Namespace, **fields: Any) -> dict[str, Any]:
        """Forgets as ``POST /v1/memory/forget`` does; ``fields``: ids, filters, mode, factor,
        validate_only, request_id, reason."""
        self._check_open()
        request = models.read_forget({"namespace": _namespace(namespace), **fields})
        return render.forget_object(self.node.memory.forget(Caller(), request, self._write_limit()))

    def health(self) -> dict[str, Any]:
        """How the store is, as ``GET /v1/memory/health`` tells."""
        self._check_open()
        return render.health_object(self.node.health(), whole=True)

    def close(self) -> None:
        """Finishes what is queued and closes the store."""
        self._closed = True
        self.node.stop()

    def __enter__(self) -> Embedded:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise FailedPrecondition("the store is closed", hint="open it with memsvc.open")

    def _write_limit(self) -> Control:
        return self._limit(self.node.settings.server.write_timeout_ms)

    @staticmethod
    def _limit(milliseconds: int) -> Control:
        return Control(time.monotonic() + milliseconds / 1_000)


def _namespace(namespace: Namespace) -> object:
    return dict(namespace) if isinstance(namespace, Mapping) else list(namespace)


def open(
    data_dir: str | os.PathLike[str],
    *,
    config: str | os.PathLike[str] | None = None,
    dimension: int | None = None,
    settings: Mapping[str, object] | None = None,
) -> Embedded:
    """Opens (or makes) the store in a directory.

    ``dimension`` of the vectors of a new store, later that of one of its embedding models;
    ``settings`` are dotted keys as in the configuration file ``config``, for example
    {"query.min_score": 0.4}.
    Raises memsvc.config.ConfigError, and FailedPrecondition when the directory is in use or
    has no vectors of that dimension.
    """
    overrides: dict[str, object] = {
        **(settings or {}),
        "storage.data_dir": str(data_dir),
        "server.readers": 0,
    }
    if dimension is not None:
        overrides["index.dimension"] = dimension
    effective = load(Path(config) if config else None, {}, overrides)
    return Embedded(Node(effective.settings))
