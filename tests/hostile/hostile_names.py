"""Namespaces and tokens that no call may have."""

from __future__ import annotations

from random import Random

from tests.hostile.case import DENIED, FOREIGN, Call, Document, Expect, Facts, mutation, wrong

CALLS: tuple[Call, ...] = ("Write", "Query", "Forget")

BAD_NAMES = ("", "a/b", "/", "a\0b", "a\nb", "\x7f", "\t", "x" * 201, "é" * 5_000, "x" * 10_240)
LOOKALIKES = (
    FOREIGN,
    "Acme",
    "ACME",
    "acme ",
    " acme",
    "acm",
    "acme\u200b",
    "acme\u0301",
    "аcme",  # Cyrillic
    "ａｃｍｅ",
    "acme-corp\u200d",
    "*",
    "..",
    "acme%2fsink",
    "acme\\sink",
)


def _for_every_call(call: Call) -> None:
    def complete(d: Document, f: Facts) -> None:
        if call == "Query":
            d["text"] = "number1"
        elif call == "Forget":
            d.update(ids=f.own_ids, mode="HARD")

    @mutation(call, weight=2)
    def name_that_no_namespace_may_have(d: Document, r: Random, f: Facts) -> Expect:
        complete(d, f)
        part = r.choice(["tenant", "agent", "session"])
        d["namespace"][part] = r.choice(BAD_NAMES[1:] if part == "session" else BAD_NAMES)
        if part == "session" and len(d["namespace"][part].encode()) <= 256:
            d["namespace"][part] = r.choice(["a/b", "\0", "x" * 257])
        return wrong(f"namespace.{part}")

    @mutation(call, weight=2)
    def tenant_that_looks_like_ones_own(d: Document, r: Random, f: Facts) -> Expect:
        complete(d, f)
        d["namespace"]["tenant"] = r.choice(LOOKALIKES)
        return DENIED

    @mutation(call, token=None)
    def call_without_a_token(d: Document, r: Random, f: Facts) -> Expect:
        complete(d, f)
        return Expect("UNAUTHENTICATED", "TOKEN_MISSING")

    for kind in ("expired", "unknown", "long", "prefix"):

        @mutation(call, token=kind, weight=0.5)
        def call_with_a_token_that_is_none(d: Document, r: Random, f: Facts) -> Expect:
            complete(d, f)
            return Expect("UNAUTHENTICATED", "TOKEN_INVALID")


for _call in CALLS:
    _for_every_call(_call)
