"""Good writes spoilt in one place."""

from __future__ import annotations

import math
from random import Random

from tests.hostile.case import (
    DIMENSION,
    FOREIGN,
    NOT_FOUND,
    OK,
    VICTIM,
    Document,
    Expect,
    Facts,
    last,
    memory,
    mutation,
    numbers,
    wrong,
)

INT64 = 1 << 63
MEGABYTE = 1 << 20
NO_NUMBERS = (math.nan, math.inf, -math.inf)
ODD_TEXTS = (
    "\ufdfa" * 200,
    "e" + "\u0301" * 2_000,
    "\u202e\u2066 right to left \u200b\u200d\ufeff",
    "рaypal and paypal",  # the first letters are Cyrillic
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1e8\U0001f1ed",
    "\0 and \x1b[31m and \x7f and \x85",
    "'; DROP TABLE memories; -- ${jndi:ldap://x} {{7*7}} %s %n <script>",
    '{"$gt": ""} OR 1=1 NEAR/2 "unclosed (((',
    "\u1100" * 500 + "\uac00",
    "a" * 60_000,
    "\U0010ffff\ufffe",
)
ODD_NAMES = ("__proto__", "constructor", "__class__", "toString", "..", "-", "0", "x" * 64)


@mutation("Write")
def vector_of_another_dimension(d: Document, r: Random, _: Facts) -> Expect:
    item, path = last(d)
    item["vector"] = numbers(r, r.choice([0, 1, DIMENSION - 1, DIMENSION + 1, 1_536, 20_000]))
    return wrong(f"{path}.vector", reason="DIMENSION_MISMATCH")


@mutation("Write")
def vector_with_no_number(d: Document, r: Random, _: Facts) -> Expect:
    item, path = last(d)
    item["vector"][r.randrange(DIMENSION)] = r.choice(NO_NUMBERS)
    return wrong(f"{path}.vector")


@mutation("Write")
def vector_beyond_float32(d: Document, r: Random, _: Facts) -> Expect:
    item, path = last(d)
    item["vector"][r.randrange(DIMENSION)] = r.choice([1e39, -1e300])
    return wrong(f"{path}.vector")


@mutation("Write")
def vector_without_direction(d: Document, r: Random, _: Facts) -> Expect:
    item, path = last(d)
    item["vector"] = [r.choice([0.0, -0.0, 1e-40, 1e-14])] * DIMENSION
    return wrong(f"{path}.vector")


@mutation("Write")
def huge_vector_is_as_good_as_any(d: Document, r: Random, _: Facts) -> Expect:
    item, _path = last(d)
    item["vector"] = [r.choice([3e38, -3e38, 1e-10])] * DIMENSION
    item["dedup_key"] = "huge"
    return OK


@mutation("Write")
def nothing_to_remember(d: Document, r: Random, _: Facts) -> Expect:
    item, path = last(d)
    item["content"] = r.choice(["", " ", "\n\t\u3000"])
    return wrong(path)


@mutation("Write")
def text_over_the_limit(d: Document, r: Random, _: Facts) -> Expect:
    item, path = last(d)
    name, most = r.choice([("content", 65_536), ("summary", 8_192), ("dedup_key", 512)])
    item[name] = r.choice(["x", "é", "語"]) * (most + 1)
    return wrong(f"{path}.{name}")


@mutation("Write", weight=0.06)
def text_of_ten_megabytes(d: Document, r: Random, _: Facts) -> Expect:
    item, _path = last(d)
    d["items"] = d["items"][-1:]
    name = r.choice(["content", "summary", "dedup_key"])
    item[name] = "x" * (10 * MEGABYTE)
    return wrong(f"items[0].memory.{name}")


@mutation("Write")
def odd_text_is_only_text(d: Document, r: Random, _: Facts) -> Expect:
    item, _path = last(d)
    number = r.randrange(len(ODD_TEXTS))
    item.update(content=ODD_TEXTS[number], dedup_key=f"odd:{number}")
    return OK


@mutation("Write")
def label_over_the_limit(d: Document, r: Random, _: Facts) -> Expect:
    item, path = last(d)
    name = r.choice(["role", "source", "topic", "category", "memory_type", "topic_key"])
    item["metadata"][name] = "x" * r.choice([257, 10_000])
    return wrong(f"{path}.metadata.{name}")


@mutation("Write")
def importance_out_of_bounds(d: Document, r: Random, _: Facts) -> Expect:
    item, path = last(d)
    item["metadata"]["importance"] = r.choice([-0.1, 1.1, 2.0**100, *NO_NUMBERS])
    return wrong(f"{path}.metadata.importance")


@mutation("Write")
def time_out_of_bounds(d: Document, r: Random, _: Facts) -> Expect:
    item, path = last(d)
    item["metadata"]["ts"] = r.choice([-1, 253_402_300_800_000, -INT64, INT64 - 1])
    return wrong(f"{path}.metadata.ts")


@mutation("Write")
def lifetime_out_of_bounds(d: Document, r: Random, _: Facts) -> Expect:
    item, path = last(d)
    item["ttl_ms"] = r.choice([-1, 3_155_760_000_001, -INT64, INT64 - 1])
    return wrong(f"{path}.ttl_ms")


@mutation("Write")
def status_that_none_begins_with(d: Document, r: Random, _: Facts) -> Expect:
    item, path = last(d)
    item["status"] = r.choice(["EXPIRED", "FORGOTTEN", "SUPERSEDED", "REJECTED"])
    return wrong(f"{path}.status")


@mutation("Write")
def attribute_with_a_bad_name(d: Document, r: Random, _: Facts) -> Expect:
    item, path = last(d)
    name = r.choice(
        ["", "a b", "a/b", "x" * 65, "é", "a\n", "a\0", "$where", "\u200b", "x" * 9_999]
    )
    item["metadata"]["attributes"][name] = "x"
    return wrong(f"{path}.metadata.attributes")


@mutation("Write")
def attribute_with_a_bad_value(d: Document, r: Random, _: Facts) -> Expect:
    item, path = last(d)
    value = r.choice(["x" * 1_025, ["x"] * 65, ["x" * 1_025], math.nan, -math.inf])
    item["metadata"]["attributes"]["bad"] = value
    return wrong(f"{path}.metadata.attributes")


@mutation("Write")
def too_many_attributes(d: Document, r: Random, _: Facts) -> Expect:
    item, path = last(d)
    item["metadata"]["attributes"] = {f"a{n}": n for n in range(r.choice([33, 2_000]))}
    return wrong(f"{path}.metadata.attributes")


@mutation("Write")
def odd_name_of_an_attribute_is_only_a_name(d: Document, r: Random, _: Facts) -> Expect:
    item, _path = last(d)
    number = r.randrange(len(ODD_NAMES))
    item["metadata"]["attributes"] = {
        ODD_NAMES[number]: r.choice([True, 1, 1.5, "\0", [], INT64 - 1, -INT64, ["", "\ufdfa"]])
    }
    item["dedup_key"] = f"name:{number}"
    return OK


@mutation("Write")
def no_items(d: Document, r: Random, _: Facts) -> Expect:
    d["items"] = []
    return wrong("items")


@mutation("Write", weight=0.2)
def batch_over_the_limit(d: Document, r: Random, _: Facts) -> Expect:
    d["items"] = [memory(r) for _ in range(r.choice([1_001, 3_000]))]
    return wrong("items")


@mutation("Write", weight=0.1)
def batch_at_the_limit_with_one_bad_item(d: Document, r: Random, _: Facts) -> Expect:
    d["items"] = [memory(r) for _ in range(1_000)]
    item, path = last(d)
    item["vector"] = [0.0] * DIMENSION
    return wrong(f"{path}.vector")


@mutation("Write")
def request_id_over_the_limit(d: Document, r: Random, _: Facts) -> Expect:
    d["request_id"] = "é" * r.choice([65, 5_000])
    return wrong("request_id")


@mutation("Write")
def request_id_of_another_request(d: Document, r: Random, _: Facts) -> Expect:
    d["request_id"] = "taken"
    return Expect(reason="REQUEST_ID_REUSED", fields=("request_id",))


@mutation("Write")
def embedding_that_nobody_knows(d: Document, r: Random, _: Facts) -> Expect:
    d["embedding"] = r.choice(["gpt", "../../etc/passwd", "\0", "x" * 10_000, "\u200b"])
    return Expect("FAILED_PRECONDITION", "EMBEDDING_UNKNOWN", ("embedding",))


# -- other items ---------------------------------------------------------------------------


def change(random: Random, kind: str, **fields: object) -> Document:
    """An item about a memory."""
    if kind == "vector":
        fields = {"vector": numbers(random), **fields}
    elif kind == "update":
        fields = {"summary": "spoilt", **fields}
    return {kind: fields}


KINDS = ("touch", "update", "vector")


@mutation("Write")
def change_of_a_memory_that_is_unknown_or_of_another(d: Document, r: Random, f: Facts) -> Expect:
    # Also one's own, but of another agent; and hidden ones without the review right.
    unknown = ["01890000-0000-7000-8000-000000000000", "x", "../x", "\0", r.choice(f.own_ids)[:-1]]
    d["namespace"]["agent"] = r.choice([VICTIM, "sink"])
    strangers = f.foreign_ids + f.hidden_ids
    if d["namespace"]["agent"] == "sink":
        strangers = strangers + f.own_ids
    kind = r.choice(KINDS)
    # The good items before it must not be applied either: their keys would then exist.
    for number, item in enumerate(d["items"]):
        item["memory"].update(dedup_key=f"never:{number}", content="must not be stored")
    d["items"].append(change(r, kind, id=r.choice(unknown + strangers)))
    return Expect(NOT_FOUND.code, NOT_FOUND.reason, (f"items[{len(d['items']) - 1}].{kind}.id",))


@mutation("Write")
def id_that_is_none(d: Document, r: Random, _: Facts) -> Expect:
    kind = r.choice(KINDS)
    d["items"].append(change(r, kind, id=r.choice(["", "x" * 65, "é" * 10_000])))
    return wrong(f"items[{len(d['items']) - 1}].{kind}.id")


@mutation("Write")
def version_of_another_time(d: Document, r: Random, f: Facts) -> Expect:
    d["namespace"]["agent"] = VICTIM
    kind = r.choice(["update", "vector"])
    version = r.choice([2, 77, 2**32 - 1])
    d["items"] = [change(r, kind, id=r.choice(f.own_ids), if_version=version)]
    return Expect("ABORTED", "VERSION_MISMATCH")


@mutation("Write")
def update_with_something_wrong(d: Document, r: Random, f: Facts) -> Expect:
    d["namespace"]["agent"] = VICTIM
    fields, where = r.choice(
        [
            ({"status": "FORGOTTEN"}, "status"),
            ({"status": "EXPIRED"}, "status"),
            ({"clear_fields": ["content"]}, "clear_fields"),
            ({"clear_fields": ["attributes.a b"]}, "clear_fields"),
            ({"clear_fields": ["seq"] * 65}, "clear_fields"),
            ({"vector": numbers(r), "clear_vector": True}, "clear_vector"),
            ({"vector": numbers(r, 3)}, "vector"),
            ({"reason": "x" * 257}, "reason"),
            ({"ttl_ms": -5}, "ttl_ms"),
            ({"content": "x" * 65_537}, "content"),
            ({"metadata": {"importance": math.nan}}, "metadata.importance"),
        ]
    )
    d["items"] = [change(r, "update", id=r.choice(f.own_ids), **fields)]
    reason = "DIMENSION_MISMATCH" if where == "vector" else "INVALID_ARGUMENT"
    return wrong(f"items[0].update.{where}", reason=reason)


@mutation("Write")
def update_that_leaves_nothing(d: Document, r: Random, f: Facts) -> Expect:
    d["namespace"]["agent"] = VICTIM
    d["items"] = [change(r, "update", id=r.choice(f.own_ids), summary="", content=" ")]
    return wrong("items[0].update.content")


@mutation("Write")
def hiding_a_memory_without_the_review_right(d: Document, r: Random, f: Facts) -> Expect:
    d["namespace"]["agent"] = VICTIM
    status = r.choice(["ARCHIVED", "REJECTED", "REVIEW", "SUPERSEDED"])
    d["items"] = [change(r, "update", id=r.choice(f.own_ids), status=status)]
    return Expect("PERMISSION_DENIED", "PERMISSION_DENIED")


@mutation("Write")
def touch_with_something_wrong(d: Document, r: Random, f: Facts) -> Expect:
    d["namespace"]["agent"] = VICTIM
    name, value = r.choice([("ts", -1), ("ts", INT64 - 1), ("importance", 1.5)])
    d["items"] = [change(r, "touch", id=r.choice(f.own_ids), **{name: value})]
    return wrong(f"items[0].touch.{name}")


@mutation("Write", token="foreign")
def writing_with_the_token_of_another_tenant(d: Document, r: Random, _: Facts) -> Expect:
    return Expect("PERMISSION_DENIED", "PERMISSION_DENIED")


@mutation("Write", token="reader")
def writing_with_the_right_to_read(d: Document, r: Random, _: Facts) -> Expect:
    return Expect("PERMISSION_DENIED", "PERMISSION_DENIED")


@mutation("Write")
def writing_into_the_tenant_of_another(d: Document, r: Random, _: Facts) -> Expect:
    d["namespace"]["tenant"] = FOREIGN
    return Expect("PERMISSION_DENIED", "PERMISSION_DENIED")
