"""Callers who would get further than their token reaches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from memsvc.domain.errors import (
    DeadlineExceeded,
    InvalidArgument,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
)
from memsvc.domain.types import (
    ForgetRequest,
    Namespace,
    NewMemory,
    QueryRequest,
    Touch,
    WriteRequest,
)
from memsvc.service.access import EVERYONE, Access, Gate
from memsvc.service.api import Control
from memsvc.service.limits import RateLimiter
from memsvc.service.metrics import Metrics
from memsvc.service.tokens import Principal, Right
from tests.edges.fakes import FakeApi, FakeTokens

NS = Namespace("acme", "bot", "s1")


def holder(*prefixes: str, rights: tuple[str, ...] = ("read", "write", "forget")) -> Principal:
    return Principal("one", prefixes, frozenset(Right(right) for right in rights))


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


@pytest.fixture
def gate(api: FakeApi) -> Gate:
    return make(api)


def make(api: FakeApi, rate: float = 0.0) -> Gate:
    return Gate(
        api,
        access=Access(FakeTokens()),
        limiter=RateLimiter(rate, clock=lambda: 0.0),
        metrics=Metrics(),
    )


def calls(gate: Gate, who: Any, namespace: Namespace = NS) -> dict[str, Callable[[], object]]:
    control = Control()
    return {
        "write": lambda: gate.write(who, WriteRequest(namespace, (NewMemory("x"),)), control),
        "query": lambda: gate.query(who, QueryRequest(namespace), control),
        "forget": lambda: gate.forget(who, ForgetRequest(namespace, ("m",)), control),
    }


def test_each_call_needs_its_own_right(gate: Gate, api: FakeApi) -> None:
    rights = {"write": "write", "query": "read", "forget": "forget"}
    for name, right in rights.items():
        calls(gate, holder("*", rights=(right,)))[name]()
        others = tuple({"read", "write", "forget", "admin", "review"} - {right})
        with pytest.raises(PermissionDenied):
            calls(gate, holder("*", rights=others))[name]()
    assert len(api.asked) == 3


@pytest.mark.parametrize(
    "prefix", ["acme-corp", "acm", "acme/bot2", "acme/bo", "acme/bot/s2", "other/bot"]
)
def test_prefix_of_another_namespace_opens_nothing(gate: Gate, api: FakeApi, prefix: str) -> None:
    for call in calls(gate, holder(prefix)).values():
        with pytest.raises(PermissionDenied):
            call()
    assert api.asked == []


def test_token_of_one_session_writes_there_and_reaches_no_other(gate: Gate, api: FakeApi) -> None:
    who = holder("acme/bot/s1")
    everything = calls(gate, who)
    everything["write"]()
    # A search and a selection span all sessions of the agent.
    for name in ("query", "forget"):
        with pytest.raises(PermissionDenied):
            everything[name]()
    # A touch names a memory by id, which may be of any session.
    mixed = WriteRequest(NS, (NewMemory("x"), Touch("m")))
    with pytest.raises(PermissionDenied):
        gate.write(who, mixed, Control())
    assert len(api.asked) == 1


def test_refusal_does_not_tell_whether_a_namespace_exists(gate: Gate) -> None:
    def message(namespace: Namespace) -> tuple[str, str, dict[str, str]]:
        with pytest.raises(PermissionDenied) as caught:
            calls(gate, holder("acme/bot"), namespace)["query"]()
        return caught.value.message, caught.value.reason, caught.value.metadata

    told = message(Namespace("acme", "known"))
    assert told == message(Namespace("nobody", "nothing"))
    assert "acme" not in told[0]


def test_caller_carries_the_name_and_the_extra_rights(gate: Gate, api: FakeApi) -> None:
    calls(gate, holder("acme/bot"))["query"]()
    reviewer = holder("acme/bot", rights=("read", "review"))
    calls(gate, reviewer)["query"]()
    calls(gate, EVERYONE)["query"]()
    plain, reviewing, everyone = api.callers
    assert (plain.actor, plain.may_review, plain.may_admin) == ("one", False, False)
    assert (reviewing.may_review, reviewing.may_admin) == (True, False)
    assert (everyone.actor, everyone.may_review, everyone.may_admin) == ("", True, True)


@pytest.mark.parametrize(
    "namespace",
    [
        Namespace("", "bot"),
        Namespace("acme", ""),
        Namespace("acme/x", "bot"),
        Namespace("acme", "b/c"),
        Namespace("acme", "bot", "a/b"),
        Namespace("a\nb", "bot"),
        Namespace("a" * 201, "bot"),
        Namespace("\ud800", "bot"),
    ],
)
def test_malformed_namespace_is_refused_before_it_is_used(
    api: FakeApi, namespace: Namespace
) -> None:
    gate = make(api, rate=1.0)
    for call in calls(gate, EVERYONE, namespace).values():
        with pytest.raises(InvalidArgument):
            call()
    assert api.asked == [] and len(gate._limiter) == 0


def test_late_or_forbidden_calls_cost_no_turn(api: FakeApi) -> None:
    gate = make(api, rate=1.0)
    with pytest.raises(DeadlineExceeded):
        gate.query(EVERYONE, QueryRequest(NS), Control(deadline=0.0))
    with pytest.raises(PermissionDenied):
        gate.query(holder("other"), QueryRequest(NS), Control())
    gate.query(EVERYONE, QueryRequest(NS), Control())
    with pytest.raises(ResourceExhausted):
        gate.query(EVERYONE, QueryRequest(NS), Control())
    assert len(api.asked) == 1


def test_missing_and_unknown_tokens_are_told_apart() -> None:
    access = Access(FakeTokens(), header="X-Key")
    with pytest.raises(Unauthenticated) as missing:
        access.authenticate(None)
    assert missing.value.reason == "TOKEN_MISSING" and "x-key" in missing.value.hint
    with pytest.raises(Unauthenticated) as unknown:
        access.authenticate("abc")
    assert unknown.value.reason == "TOKEN_INVALID"
    assert "abc" not in unknown.value.message + unknown.value.hint


def test_without_tokens_everyone_is_admitted() -> None:
    access = Access(None)
    assert access.open and access.authenticate(None) is EVERYONE
    access.allow(EVERYONE, "admin")


def test_clock_of_the_token_check_is_given() -> None:
    seen: list[int] = []

    class Tokens:
        def authenticate(self, token: str, now_ms: int) -> None:
            seen.append(now_ms)

    Access(Tokens(), now_ms=lambda: 42).identify("t")
    assert seen == [42]


def test_administration_of_the_node_needs_everything(gate: Gate) -> None:
    admin = holder("acme", rights=("admin",))
    gate.admin(admin, "acme")
    gate.admin(admin, "acme", "bot")
    gate.admin(dataclasses.replace(admin, prefixes=("*",)))
    for scope in ((), ("acme-corp",)):
        with pytest.raises(PermissionDenied):
            gate.admin(admin, *scope)
