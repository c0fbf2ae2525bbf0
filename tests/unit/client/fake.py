"""A small memory service over real gRPC, correct unless told to misbehave."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

from memsvc.admin.v1 import admin_service_pb2 as admin_pb
from memsvc.admin.v1 import admin_service_pb2_grpc as admin_grpc
from memsvc.client.messages import to_plain, vector_array
from memsvc.domain.filters import matches, normalise
from memsvc.rpc.checks import Found
from memsvc.rpc.filters import to_filter
from memsvc.v1 import memory_service_pb2 as pb
from memsvc.v1 import memory_service_pb2_grpc as pb_grpc
from memsvc.v1 import types_pb2
from tests.unit.client.fake_admin import FakeAdminCalls

Hook = Callable[[str, Any, grpc.ServicerContext], None]


def refuse(
    context: grpc.ServicerContext,
    code: grpc.StatusCode,
    message: str,
    *,
    reason: str = "",
    hint: str = "",
    fields: tuple[tuple[str, str], ...] = (),
    retry_ms: int | None = None,
    primary: str = "",
) -> None:
    """Ends a call with google.rpc details, as the real service does."""
    status = status_pb2.Status(code=code.value[0], message=message)
    details: list[Any] = [
        error_details_pb2.ErrorInfo(
            reason=reason,
            domain="memsvc",
            metadata={"hint": hint, **({"primary": primary} if primary else {})},
        )
    ]
    if retry_ms is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(retry_ms)
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    if fields:
        bad = error_details_pb2.BadRequest()
        for field, description in fields:
            bad.field_violations.add(field=field, description=description)
        details.append(bad)
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(code, message)


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-z0-9_./-]+|[一-鿿]", text.lower()))


class FakeService(pb_grpc.MemoryServiceServicer, FakeAdminCalls):
    """``hook`` sees (call, request, context) first and may refuse; ``requests`` keeps all."""

    def __init__(self, dimension: int = 8, embedding: str = "") -> None:
        self.dimension, self.embedding = dimension, embedding
        self.memories: dict[tuple[str, str], dict[str, pb.Hit]] = {}
        self.rebuilds: list[admin_pb.Rebuild] = []
        """What GetRebuild answers, one after the other; the last one again and again."""
        self.keys: dict[tuple[str, str, str], str] = {}
        self.requests: list[tuple[str, Any]] = []
        self.tokens: list[str] = []
        self.hook: Hook = lambda call, request, context: None
        self.forgets = True
        self.filters = True
        self.min_score = 0.62
        self.ready = True
        self.role = pb.ROLE_STANDALONE
        self.epoch = 1
        self.lag_ms = 0
        self.position = "p1"
        """What Write answers."""
        self.degraded = types_pb2.Degraded()
        self.lock = threading.RLock()
        self.counter = 0

    def calls(self, name: str) -> list[Any]:
        """The requests of one call, in order."""
        return [request for call, request in self.requests if call == name]

    def _enter(self, call: str, request: Any, context: grpc.ServicerContext) -> None:
        self.requests.append((call, request))
        self.tokens.append(
            next((str(v) for k, v in context.invocation_metadata() if k == "x-memory-token"), "")
        )
        self.hook(call, request, context)

    def Write(self, request: pb.WriteRequest, context: grpc.ServicerContext) -> pb.WriteResponse:
        self._enter("Write", request, context)
        where = (request.namespace.tenant, request.namespace.agent)
        response = pb.WriteResponse(position=self.position)
        with self.lock:
            part = self.memories.setdefault(where, {})
            for item in request.items:
                if item.WhichOneof("item") == "memory":
                    response.results.append(self._create(where, request, item.memory))
                    continue
                change = item.touch if item.HasField("touch") else item.update
                hit = part[change.id]
                if item.HasField("touch"):
                    hit.importance_stored = max(hit.importance_stored, item.touch.importance)
                    outcome = pb.OUTCOME_TOUCHED
                else:
                    hit.status = item.update.status or hit.status
                    outcome = pb.OUTCOME_UPDATED
                response.results.add(id=hit.id, outcome=outcome, status=hit.status, version=1)
        return response

    def _create(
        self, where: tuple[str, str], request: pb.WriteRequest, memory: pb.Memory
    ) -> pb.WriteResult:
        key = (*where, memory.dedup_key)
        if memory.dedup_key and key in self.keys:
            known = self.memories[where].get(self.keys[key])
            status = known.status if known else types_pb2.STATUS_FORGOTTEN
            return pb.WriteResult(
                id=self.keys[key], outcome=pb.OUTCOME_EXISTS, status=status, version=1
            )
        self.counter += 1
        now = int(time.time() * 1000)
        hit = pb.Hit(
            id=f"m{self.counter:05d}",
            summary=memory.summary or memory.content[:240],
            content=memory.content,
            metadata=memory.metadata,
            version=1,
            status=memory.status or types_pb2.STATUS_ACTIVE,
            session=request.namespace.session,
            importance_stored=memory.metadata.importance or 0.5,
            created_at=now,
            expires_at=now + memory.ttl_ms if memory.ttl_ms else 0,
            vector=memory.vector if memory.HasField("vector") else None,
        )
        if not hit.metadata.HasField("ts"):
            hit.metadata.ts = now
        hit.metadata.importance = hit.importance_stored
        self.memories[where][hit.id] = hit
        if memory.dedup_key:
            self.keys[key] = hit.id
        return pb.WriteResult(id=hit.id, outcome=pb.OUTCOME_CREATED, status=hit.status, version=1)

    def Query(self, request: pb.QueryRequest, context: grpc.ServicerContext) -> pb.QueryResponse:
        self._enter("Query", request, context)
        found = self._selected(request.namespace, request)
        found = [hit for hit in found if hit.status == types_pb2.STATUS_ACTIVE]
        top_k = request.top_k or 40
        response = pb.QueryResponse(
            position="p1", mode=request.mode or pb.MODE_AUTO, degraded=self.degraded
        )
        if request.ids:
            by_id = {hit.id: hit for hit in found}
            response.items.extend(by_id[one] for one in request.ids if one in by_id)
        elif request.HasField("vector") and request.mode != pb.MODE_KEYWORD:
            self._by_vector(request, found, top_k, response)
        elif request.text:
            wanted = words(request.text)
            scored = [(len(wanted & words(hit.summary)), hit) for hit in found]
            for score, hit in sorted((s for s in scored if s[0]), key=lambda s: -s[0])[:top_k]:
                response.items.append(hit)
                response.items[-1].score = response.items[-1].keyword_score = score
        else:
            start = int(request.page_token or 0)
            found.sort(key=lambda hit: (-hit.metadata.ts, hit.id))
            response.items.extend(found[start : start + top_k])
            if start + top_k < len(found):
                response.next_page_token = str(start + top_k)
        for hit in response.items:
            if not request.include.content:
                hit.ClearField("content")
            if not request.include.vector:
                hit.ClearField("vector")
        return response

    def _by_vector(
        self, request: pb.QueryRequest, found: list[pb.Hit], top_k: int, out: pb.QueryResponse
    ) -> None:
        least = request.min_score if request.HasField("min_score") else self.min_score
        query = vector_array(request.vector)
        query = query / np.linalg.norm(query)
        scored = []
        for hit in found:
            if hit.HasField("vector"):
                vector = vector_array(hit.vector)
                scored.append((float(query @ vector / np.linalg.norm(vector)), hit))
        for score, hit in sorted(scored, key=lambda s: -s[0])[:top_k]:
            if score >= least:
                out.items.append(hit)
                out.items[-1].score = out.items[-1].similarity = score

    def _selected(self, namespace: types_pb2.Namespace, request: Any) -> list[pb.Hit]:
        part = self.memories.get((namespace.tenant, namespace.agent), {})
        hits = list(part.values())
        if request.HasField("filters") and self.filters:
            found = Found()
            node = to_filter(request.filters, "filters", found)
            assert node is not None
            node = normalise(node, "filters", [])
            hits = [hit for hit in hits if matches(node, lambda name, h=hit: _field(h, name))]
        return hits

    def Forget(self, request: pb.ForgetRequest, context: grpc.ServicerContext) -> pb.ForgetResponse:
        self._enter("Forget", request, context)
        hits = self._selected(request.namespace, request)
        if request.ids:
            hits = [hit for hit in hits if hit.id in set(request.ids)]
        ids = [hit.id for hit in hits]
        if not request.validate_only and self.forgets:
            part = self.memories.get((request.namespace.tenant, request.namespace.agent), {})
            for one in ids:
                if request.mode == pb.FORGET_MODE_HARD:
                    del part[one]
                else:
                    part[one].importance_stored *= (
                        request.factor if request.HasField("factor") else 0.5
                    )
        return pb.ForgetResponse(
            matched=len(ids),
            changed=0 if request.validate_only else len(ids),
            ids=ids[:1000],
            ids_truncated=len(ids) > 1000,
            position="p2",
        )

    def Health(self, request: pb.HealthRequest, context: grpc.ServicerContext) -> pb.HealthResponse:
        self._enter("Health", request, context)
        return pb.HealthResponse(
            ready=self.ready,
            role=self.role,
            epoch=self.epoch,
            lag_ms=self.lag_ms,
            version="test",
            store_id="s",
            reasons=[] if self.ready else ["starting"],
            store=pb.StoreFacts(
                memories=sum(len(part) for part in self.memories.values()),
                partitions=len(self.memories),
                dimension=self.dimension,
                embedding=self.embedding,
                dtype="bf16",
            ),
            load=pb.Load(write_queue_max=5000),
        )


def _field(hit: pb.Hit, name: str) -> Any:
    if name == "status":
        return int(hit.status)
    if name == "session":
        return hit.session or None
    if name == "importance":
        return hit.importance_stored
    if name.startswith("attributes."):
        return to_plain(hit.metadata).get("attributes", {}).get(name.removeprefix("attributes."))
    value = to_plain(hit.metadata).get(name)
    return value if value != "" else None


class Running:
    """A FakeService that listens on a free port of this machine."""

    def __init__(self, service: FakeService) -> None:
        self.service = service
        self._server = grpc.server(ThreadPoolExecutor(8))
        pb_grpc.add_MemoryServiceServicer_to_server(service, self._server)
        admin_grpc.add_AdminServiceServicer_to_server(service, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def stop(self) -> None:
        self._server.stop(None).wait()
