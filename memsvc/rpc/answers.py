"""Domain answers as response messages."""

from __future__ import annotations

from memsvc.domain.types import (
    Degraded,
    ForgetAnswer,
    HealthAnswer,
    QueryAnswer,
    WriteAnswer,
)
from memsvc.rpc.hit_bytes import hit_list, tag, varint
from memsvc.v1 import memory_service_pb2 as pb
from memsvc.v1 import types_pb2

_RESULTS = tag(pb.QueryResponse, "results")
_ROLES = {
    "standalone": pb.ROLE_STANDALONE,
    "primary": pb.ROLE_PRIMARY,
    "replica": pb.ROLE_REPLICA,
}


def write_response(answer: WriteAnswer) -> pb.WriteResponse:
    """Results in the order of the items."""
    response = pb.WriteResponse(position=answer.position, replayed=answer.replayed)
    results = response.results
    for result in answer.results:
        results.add(
            id=result.id,
            outcome=int(result.outcome),
            status=int(result.status),
            version=result.version,
        )
    return response


def query_response(answer: QueryAnswer) -> bytes:
    """A serialised QueryResponse: hits are written as columns."""
    response = pb.QueryResponse(
        position=answer.position,
        next_page_token=answer.next_page_token,
        mode=int(answer.mode),  # type: ignore[arg-type]  # the numbers are the same
    )
    if answer.degraded.level:
        response.degraded.CopyFrom(degraded(answer.degraded))
    for part in answer.explain:
        response.explain.add(
            part=part.part,
            plan=part.plan,
            rows=part.rows,
            matching=part.matching,
            candidates=part.candidates,
            why=part.why,
            elapsed_us=part.elapsed_us,
        )
    lists = [hit_list(hits) for hits in answer.lists]
    if answer.many:
        lists = [_RESULTS + varint(len(items)) + items for items in lists]
    return b"".join((*lists, response.SerializeToString()))


def forget_response(answer: ForgetAnswer) -> pb.ForgetResponse:
    """What was forgotten."""
    return pb.ForgetResponse(
        matched=answer.matched,
        changed=answer.changed,
        ids=answer.ids,
        ids_truncated=answer.ids_truncated,
        position=answer.position,
        replayed=answer.replayed,
    )


def degraded(value: Degraded) -> types_pb2.Degraded:
    """Level and reason."""
    return types_pb2.Degraded(level=int(value.level), reason=value.reason)


def health_response(answer: HealthAnswer, whole: bool) -> pb.HealthResponse:
    """How the node is; without ``whole`` only what anyone may know."""
    response = pb.HealthResponse(
        ready=answer.ready,
        role=_ROLES.get(answer.role, pb.ROLE_UNSPECIFIED),
        degraded=degraded(answer.degraded),
        version=answer.version,
    )
    if not whole:
        return response
    response.position = answer.position
    response.lag_positions = answer.lag_positions
    response.lag_ms = answer.lag_ms
    response.store_id = answer.store_id
    response.reasons.extend(answer.reasons)
    response.epoch = answer.epoch
    response.load.write_queue = answer.load.write_queue
    response.load.write_queue_max = answer.load.write_queue_max
    response.load.active_calls = answer.load.active_calls
    facts = answer.store
    response.store.CopyFrom(
        pb.StoreFacts(
            memories=facts.memories,
            partitions=facts.partitions,
            segments=facts.segments,
            bytes=facts.bytes,
            max_bytes=facts.max_bytes,
            dimension=facts.dimension,
            embedding=facts.embedding,
            dtype=facts.dtype,
            segment_bytes=facts.segment_bytes,
            damaged_files=facts.damaged_files,
            cold_segments=facts.cold_segments,
            cold_rows=facts.cold_rows,
            cold_bytes=facts.cold_bytes,
            cold_resident_bytes=facts.cold_resident_bytes,
            embeddings=[
                pb.Embedding(name=e.name, dimension=e.dimension, is_default=e.is_default)
                for e in facts.embeddings
            ],
        )
    )
    return response
