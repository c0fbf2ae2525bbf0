"""Good queries and forgets spoilt in one place."""

from __future__ import annotations

import base64
import math
from random import Random
from typing import Any

from tests.hostile.case import (
    DENIED,
    DIMENSION,
    LOST,
    OK,
    VICTIM,
    Document,
    Expect,
    Facts,
    mutation,
    numbers,
    wrong,
)
from tests.hostile.hostile_writes import INT64, NO_NUMBERS, ODD_TEXTS

REVIEW = Expect("PERMISSION_DENIED", "REVIEW_RIGHT_NEEDED", ("filters.status",))


@mutation("Query")
def query_vector_that_is_none(d: Document, r: Random, _: Facts) -> Expect:
    d["vector"] = numbers(r)
    where = "vector"
    if r.random() < 0.5:
        d["vectors"] = [numbers(r), d.pop("vector")]
        where = "vectors[1]"
    vector = d.get("vector") or d["vectors"][1]
    if r.random() < 0.3:
        vector.append(1.0)
        return wrong(where, reason="DIMENSION_MISMATCH")
    if r.random() < 0.5:
        vector[:] = [r.choice([0.0, -0.0, 1e-42])] * DIMENSION
    else:
        vector[r.randrange(DIMENSION)] = r.choice([*NO_NUMBERS, 1e39])
    return wrong(where)


@mutation("Query")
def number_out_of_bounds(d: Document, r: Random, _: Facts) -> Expect:
    d["text"] = "number1"
    name, value = r.choice(
        [
            ("top_k", 201),
            ("top_k", 2**32 - 1),
            ("ef_search", 4_097),
            ("ef_search", 2**32 - 1),
            ("min_score", 1.5),
            ("min_score", -math.inf),
            ("min_score", math.nan),
            ("as_of", -1),
            ("as_of", INT64 - 1),
        ]
    )
    d[name] = value
    return wrong(name)


@mutation("Query", protocols=("http",))
def number_that_no_message_could_hold(d: Document, r: Random, _: Facts) -> Expect:
    d["text"] = "number1"
    name = r.choice(["top_k", "ef_search"])
    d[name] = r.choice([-1, 2**32, -INT64, 10**30, 1.5, True, "3", [1], {}])
    return wrong(name)


@mutation("Query")
def rank_out_of_bounds(d: Document, r: Random, _: Facts) -> Expect:
    d["text"] = "number1"
    name, value = r.choice(
        [
            ("similarity_weight", 1.5),
            ("importance_weight", math.nan),
            ("freshness_weight", -1.0),
            ("half_life_ms", -1),
            ("half_life_ms", INT64 - 1),
            ("keep", 0),
            ("keep", 2**32 - 1),
        ]
    )
    d["rank"] = {name: value}
    return wrong(f"rank.{name}")


@mutation("Query")
def search_that_lacks_what_its_mode_needs(d: Document, r: Random, f: Facts) -> Expect:
    changes: dict[str, Any]
    changes, where = r.choice(
        [
            ({"mode": "VECTOR", "text": "number1"}, "vector"),
            ({"mode": "KEYWORD", "vector": numbers(r)}, "text"),
            ({"mode": "HYBRID", "text": "number1"}, "vector"),
            ({"text": "\u200b\u202e ... !!"}, "text"),
            ({"mode": "KEYWORD", "text": "()*:^~"}, "text"),
            ({"text": "x" * 8_193}, "text"),
            ({"vectors": [numbers(r)] * 65}, "vectors"),
            ({"vector": numbers(r), "vectors": [numbers(r)]}, "vectors"),
            ({"ids": f.own_ids[:1], "text": "number1"}, "text"),
            ({"ids": f.own_ids[:1], "vector": numbers(r)}, "vector"),
            ({"ids": f.own_ids[:1], "mode": "KEYWORD"}, "mode"),
            ({"ids": ["x" * 65]}, "ids[0]"),
            ({"ids": ["x"] * 1_001}, "ids"),
            ({"vectors": [numbers(r)], "mode": "BROWSE"}, "vectors"),
            ({"page_token": f.page_token, "text": "number1"}, "page_token"),
            ({"page_token": "x" * 513}, "page_token"),
            ({"text": "x", "min_position": "x" * 129}, "min_position"),
            ({}, ""),
        ]
    )
    d.update(changes)
    return wrong(where)


@mutation("Query")
def words_are_no_query_language(d: Document, r: Random, _: Facts) -> Expect:
    syntax = ['"number1', "number1 NEAR/0 number2)", "-number1 OR *", "content:number1^9", "%_\\"]
    d["text"] = r.choice(["number1 ", "b "]) + r.choice([*ODD_TEXTS[:9], *syntax])[:1_500]
    return OK


@mutation("Query")
def page_token_made_up(d: Document, r: Random, f: Facts) -> Expect:
    d.update(mode="BROWSE", page_token=forged(r, f.page_token))
    d["namespace"]["agent"] = VICTIM
    return Expect()


def forged(random: Random, token: str) -> str:
    """A token that was never given: cut, garbled, or of bytes."""
    data = bytearray(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    kind = random.randrange(4)
    if kind == 0:
        return token[: random.randrange(1, len(token) - 2)]
    if kind == 1:
        return random.choice(["null", "../x", "é", "\0", "=", "A" * 40, "-1", "0x00"])
    if kind == 2:
        return base64.urlsafe_b64encode(random.randbytes(len(data))).decode()
    data[1 + random.randrange(8)] ^= 1 << random.randrange(8)
    return base64.urlsafe_b64encode(bytes(data)).decode().rstrip("=")


@mutation("Query")
def page_token_of_another_request(d: Document, r: Random, f: Facts) -> Expect:
    # It was given for a browse of acme/victim without filters.
    d.update(mode="BROWSE", page_token=f.page_token)
    d["namespace"]["agent"] = r.choice([VICTIM, "sink"])
    if d["namespace"]["agent"] == VICTIM:
        d["filters"] = {"topic": "t"}
    return Expect()


@mutation("Query")
def position_made_up(d: Document, r: Random, f: Facts) -> Expect:
    d.update(text="number1", min_position=r.choice(["x", "AAAA", "é", "1", "latest", "\0"]))
    return wrong("min_position")


@mutation("Query")
def position_of_another_store_or_of_the_future(d: Document, r: Random, f: Facts) -> Expect:
    data = bytearray(base64.urlsafe_b64decode(f.position + "=" * (-len(f.position) % 4)))
    if r.random() < 0.5:
        data[1 + r.randrange(8)] ^= 0xFF
    else:
        data[-8:] = r.choice([b"\xff" * 8, b"\x7f" * 8])
    spelled = base64.urlsafe_b64encode(bytes(data)).decode().rstrip("=")
    d.update(text="number1", min_position=spelled)
    return LOST


@mutation("Query")
def foreign_and_hidden_ids_are_not_found(d: Document, r: Random, f: Facts) -> Expect:
    # Not an error, and nothing: the checks of every answer look for the secrets.
    d["namespace"]["agent"] = r.choice([VICTIM, "sink"])
    d["ids"] = [*f.foreign_ids, *f.hidden_ids, "\0", "x"]
    d["include"] = {"content": True, "vector": True, "explain": True}
    return OK


@mutation("Query", token="foreign")
def reading_with_the_token_of_another_tenant(d: Document, r: Random, _: Facts) -> Expect:
    d["text"] = "number1"
    return DENIED


@mutation("Query")
def embedding_that_nobody_knows(d: Document, r: Random, _: Facts) -> Expect:
    d.update(vector=numbers(r), embedding=r.choice(["ada", "\0", "x" * 9_999]))
    return Expect("FAILED_PRECONDITION", "EMBEDDING_UNKNOWN")


# -- filters -------------------------------------------------------------------------------

HIDDEN = ("archived", "REVIEW", "Forgotten", "expired", "superseded", "rejected")


@mutation("Query")
def hidden_statuses_without_the_review_right(d: Document, r: Random, _: Facts) -> Expect:
    d["namespace"]["agent"] = VICTIM
    status = r.choice(HIDDEN)
    d["filters"] = r.choice(
        [
            {"status": status},
            {"status": {"in": ["active", status]}},
            {"not": {"status": status}},
            {"not": {"not": {"status": {"in": [status]}}}},
            {"or": [{"topic": "t"}, {"and": [{"status": status}, {"topic": "t"}]}]},
        ]
    )
    return REVIEW


@mutation("Query")
def hidden_memories_by_the_back_door(d: Document, r: Random, _: Facts) -> Expect:
    # No status is named, so nothing is refused; what is hidden must not come along.
    d["namespace"]["agent"] = VICTIM
    d["filters"] = r.choice(
        [
            {"not": {"status": "active"}},
            {"status": {"exists": True}},
            {"not": {"status": {"exists": False}}},
            {"or": [{"not": {"status": "active"}}, {"topic": {"exists": True}}]},
            {"importance": {"gte": 0}, "ts": {"gte": 0}},
        ]
    )
    d["include"] = {"content": True, "explain": True}
    return OK


def bad_filters(r: Random) -> list[tuple[Any, str]]:
    """Trees that cannot be asked, and where the violation stands."""
    deep: Document = {"topic": "x"}
    for _ in range(r.choice([8, 20, 30])):
        deep = {"not": deep}
    return [
        ({"nope": 1}, "filters"),
        ({"content": "x"}, "filters"),
        ({"__proto__": 1}, "filters"),
        ({"attributes.a b": 1}, "filters"),
        ({"attributes.": 1}, "filters"),
        ({"attributes." + "x" * 65: 1}, "filters"),
        ({"topic": 5}, "filters.topic"),
        ({"topic": True}, "filters.topic"),
        ({"importance": "high"}, "filters.importance"),
        ({"importance": True}, "filters.importance"),
        ({"seq": {"gt": False}}, "filters.seq"),
        ({"ts": {"gte": "2026-01-01T00:00:00Z"}}, "filters.ts"),
        ({"ts": {"in": ["yesterday"]}}, "filters.ts"),
        ({"status": "lost"}, "filters.status"),
        ({"status": 1}, "filters.status"),
        ({"status": {"gt": "active"}}, "filters.status"),
        ({"topic": {"in": []}}, "filters.topic"),
        ({"topic": {"in": ["x"] * 1_001}}, "filters.topic"),
        ({"topic": "x" * 1_025}, "filters.topic"),
        ({"attributes.n": math.nan}, "filters.attributes.n"),
        ({"attributes.n": {"lt": math.inf}}, "filters.attributes.n"),
        ({"attributes.n": {"gt": ["x"]}}, "filters.attributes.n"),
        ({"or": [{"topic": str(n)} for n in range(65)]}, "filters"),
        ({"and": [{"or": [{"topic": "x"}] * 33}] * 2}, "filters"),
        ({"or": []}, "filters"),
        (deep, "filters"),
    ]


@mutation("Query", weight=4)
def filter_that_cannot_be_asked(d: Document, r: Random, _: Facts) -> Expect:
    d["filters"], where = r.choice(bad_filters(r))
    return wrong(where)


@mutation("Forget", weight=2)
def filter_that_cannot_select_what_to_forget(d: Document, r: Random, _: Facts) -> Expect:
    d["namespace"]["agent"] = VICTIM
    d["mode"] = r.choice(["HARD", "DECAY"])
    d["filters"], where = r.choice(bad_filters(r))
    return wrong(where)


@mutation("Query")
def filter_of_legal_extremes(d: Document, r: Random, _: Facts) -> Expect:
    deep: Document = {"attributes.__proto__": {"in": ["\0", "\ufdfa", 1, True, 0.5, ["x"]]}}
    for _ in range(7):
        deep = {"not": deep}
    wide = {"or": [{"topic": {"in": [f"v{n}" for n in range(999)]}} for _ in range(20)]}
    d["filters"] = r.choice(
        [deep, wide, {"seq": {"gt": -INT64, "lt": INT64 - 1}}, {"attributes.n": 1e308}]
    )
    return OK


# -- forgetting ----------------------------------------------------------------------------


@mutation("Forget")
def forgetting_of_what_cannot_be_selected(d: Document, r: Random, f: Facts) -> Expect:
    d["namespace"]["agent"] = VICTIM
    d["ids"] = f.own_ids[:3]
    d["mode"] = "DECAY"
    changes: dict[str, Any]
    changes, where = r.choice(
        [
            ({"ids": []}, "ids"),
            ({"ids": ["x" * 65]}, "ids[0]"),
            ({"factor": 1.0}, "factor"),
            ({"factor": -0.5}, "factor"),
            ({"factor": math.nan}, "factor"),
            ({"factor": math.inf}, "factor"),
            ({"reason": "é" * 129}, "reason"),
            ({"request_id": "x" * 129}, "request_id"),
        ]
    )
    d.update(changes)
    return wrong(where)


@mutation("Forget", weight=0.2)
def forgetting_of_too_many_ids(d: Document, r: Random, f: Facts) -> Expect:
    d["namespace"]["agent"] = VICTIM
    d["ids"] = f.own_ids[:1] * 10_001
    return wrong("ids")


@mutation("Forget")
def forgetting_with_a_request_id_of_another_request(d: Document, r: Random, f: Facts) -> Expect:
    d["namespace"]["agent"] = VICTIM
    d.update(ids=f.own_ids, mode="HARD", request_id="taken")
    return Expect(reason="REQUEST_ID_REUSED", fields=("request_id",))


@mutation("Forget")
def foreign_ids_are_not_forgotten(d: Document, r: Random, f: Facts) -> Expect:
    # Own ones, but of another agent, neither: the checks at the end look for all of them.
    d.update(ids=f.foreign_ids + f.own_ids + f.hidden_ids, mode=r.choice(["HARD", "DECAY"]))
    return OK


@mutation("Forget")
def telling_what_would_be_forgotten_forgets_nothing(d: Document, r: Random, f: Facts) -> Expect:
    d["namespace"]["agent"] = VICTIM
    d.update(ids=f.own_ids, mode=r.choice(["HARD", "DECAY"]), validate_only=True)
    return OK


@mutation("Forget", token="reader")
def forgetting_with_the_right_to_read(d: Document, r: Random, f: Facts) -> Expect:
    d["namespace"]["agent"] = VICTIM
    d.update(ids=f.own_ids, mode="HARD")
    return DENIED
