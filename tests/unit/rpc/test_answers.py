"""Answers that would lose or mix up what was found."""

from __future__ import annotations

from memsvc.domain.hits import NO_HITS
from memsvc.domain.types import (
    Degraded,
    DegradedLevel,
    ExplainPart,
    ForgetAnswer,
    Mode,
    Outcome,
    QueryAnswer,
    Status,
    WriteAnswer,
    WriteResult,
)
from memsvc.rpc import answers
from memsvc.v1 import memory_service_pb2 as pb
from memsvc.v1 import types_pb2
from tests.edges.fakes import FakeApi, hits_of, make_hit
from tests.edges.harness import vector


def response_of(answer: QueryAnswer) -> pb.QueryResponse:
    return pb.QueryResponse.FromString(answers.query_response(answer))


def test_hit_has_its_stored_head_and_its_state_of_now() -> None:
    hit = make_hit(3, content="text", vector=vector(1, 2), keyword_score=4.0)
    item = response_of(QueryAnswer((hits_of(hit),), False, Mode.HYBRID, "p")).items[0]
    assert item.summary == "summary 3" and item.session == "s1"
    assert item.metadata.seq == 3 and item.metadata.attributes["city"].string_value == "Bern"
    assert item.metadata.ts == 1_700_000_000_000
    assert (item.metadata.importance, item.importance_stored) == (0.25, 0.5)
    assert (item.similarity, item.score, item.keyword_score) == (0.75, 0.75, 4.0)
    assert item.status == types_pb2.STATUS_ACTIVE and item.version == 1
    assert (item.created_at, item.updated_at) == (1_700_000_000_001, 1_700_000_000_002)
    assert item.content == "text" and len(item.vector.data) == 8 and item.recall_count == 2


def test_missing_similarity_is_unset_and_not_zero() -> None:
    hit = make_hit(0, similarity=None)
    item = response_of(QueryAnswer((hits_of(hit),), False, Mode.KEYWORD, "p")).items[0]
    assert not item.HasField("similarity") and not item.HasField("keyword_score")
    assert not item.HasField("vector")


def test_many_vectors_answer_in_lists_even_when_some_are_empty() -> None:
    answer = QueryAnswer(
        (hits_of(make_hit(0)), NO_HITS, hits_of(make_hit(1))), True, Mode.VECTOR, "p"
    )
    response = response_of(answer)
    assert [len(part.items) for part in response.results] == [1, 0, 1]
    assert not response.items


def test_degradation_position_and_plan_are_told() -> None:
    response = response_of(
        QueryAnswer(
            (NO_HITS,),
            False,
            Mode.BROWSE,
            "p",
            Degraded(DegradedLevel.TIMEOUT, "TIMEOUT"),
            "next",
            (ExplainPart("tail", "exact", 1, 2, 3, "few rows", 4),),
        )
    )
    assert (response.degraded.level, response.degraded.reason) == (1, "TIMEOUT")
    assert (response.position, response.next_page_token) == ("p", "next")
    assert response.mode == pb.MODE_BROWSE
    part = response.explain[0]
    assert (part.part, part.plan, part.rows, part.matching) == ("tail", "exact", 1, 2)
    assert (part.candidates, part.why, part.elapsed_us) == (3, "few rows", 4)
    whole = response_of(QueryAnswer((NO_HITS,), False, Mode.VECTOR, "p"))
    assert not whole.HasField("degraded")


def test_write_and_forget_answers_arrive() -> None:
    answer = WriteAnswer(
        (
            WriteResult("a", Outcome.EXISTS, Status.FORGOTTEN, 4),
            WriteResult("b", Outcome.CREATED, Status.ACTIVE, 1),
        ),
        "p",
        True,
    )
    response = answers.write_response(answer)
    assert response.replayed and response.position == "p"
    first = response.results[0]
    assert (first.id, first.outcome, first.status, first.version) == (
        "a",
        pb.OUTCOME_EXISTS,
        types_pb2.STATUS_FORGOTTEN,
        4,
    )
    forgot = answers.forget_response(ForgetAnswer(5, 4, ("a", "b"), True, "p", True))
    assert (forgot.matched, forgot.changed, list(forgot.ids)) == (5, 4, ["a", "b"])
    assert forgot.ids_truncated and forgot.replayed and forgot.position == "p"


def test_health_without_a_token_tells_only_what_anyone_may_know() -> None:
    answer = FakeApi().health()
    reduced = answers.health_response(answer, False)
    assert {field.name for field, _ in reduced.ListFields()} == {
        "ready",
        "role",
        "degraded",
        "version",
    }
    whole = answers.health_response(answer, True)
    assert whole.store.memories == 10 and whole.load.write_queue_max == 5_000
    assert whole.store_id == "store-1" and whole.role == pb.ROLE_STANDALONE
