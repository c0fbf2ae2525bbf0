"""Forget over many memories: in batches, each of which goes on where the one before ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from memsvc.domain.errors import Code
from memsvc.domain.filters import Condition, Equals
from memsvc.domain.types import ForgetMode, ForgetRequest, Namespace
from memsvc.service import forgetting
from memsvc.service.api import Control
from memsvc.store.write_txn import WriteTxn
from tests.semantics.harness import NS, READER, REVIEWER, World, error_of

Make = Callable[..., World]
FOOD = {"topic": "food"}


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forgetting, "FORGET_BATCH", 10)


def _fill(world: World, count: int) -> list[str]:
    items = [{"summary": "x", "metadata": {"topic": "food", "importance": 0.8}}] * count
    return [r["id"] for r in world.write(*items)]


def _importances(world: World) -> set[float]:
    answer = world.query(mode="BROWSE", top_k=200)
    return {round(item["importance_stored"], 3) for item in answer["items"]}


def _break_off(world: World, monkeypatch: pytest.MonkeyPatch, batches: int) -> None:
    """The node does not get further than some batches of the next Forget."""
    done = 0
    decide = forgetting.ForgetDecision.__call__

    def limited(self: Any, txn: WriteTxn) -> Any:
        nonlocal done
        done += 1
        if done > batches:
            raise OSError("gone")
        return decide(self, txn)

    with monkeypatch.context() as patched:
        patched.setattr(forgetting.ForgetDecision, "__call__", limited)
        with pytest.raises(Exception, match="stored"):
            world.forget(filters=FOOD, mode="DECAY", factor=0.5, request_id="r1")


def test_a_large_forget_lets_writes_of_others_in_between(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fill(world, 35)
    transactions: list[int] = []
    decide = forgetting.ForgetDecision.__call__

    def noted(self: Any, txn: WriteTxn) -> Any:
        answer = decide(self, txn)
        transactions.append(txn.position)
        if len(transactions) < 4:
            world.node.writer.submit(lambda inner: world_position.append(inner.position))
        return answer

    world_position: list[int] = []
    monkeypatch.setattr(forgetting.ForgetDecision, "__call__", noted)
    answer = world.forget(filters=FOOD, mode="HARD")
    assert (answer["matched"], answer["changed"], len(answer["ids"])) == (35, 35, 35)
    # What was queued during a batch ran before the batch after it.
    assert world_position == transactions[:3]
    assert world.all() == []


def test_a_decay_that_broke_off_lowers_each_memory_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fill(world, 35)
    _break_off(world, monkeypatch, 2)
    assert _importances(world) == {0.4, 0.8}
    answer = world.forget(filters=FOOD, mode="DECAY", factor=0.5, request_id="r1")
    assert (answer["matched"], answer["changed"], len(set(answer["ids"]))) == (35, 35, 35)
    assert _importances(world) == {0.4}
    again = world.forget(filters=FOOD, mode="DECAY", factor=0.5, request_id="r1")
    assert again == {**answer, "replayed": True}
    assert _importances(world) == {0.4}


def test_a_decay_that_broke_off_goes_on_after_a_restart(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fill(world, 35)
    _break_off(world, monkeypatch, 3)
    world.restart()
    answer = world.forget(filters=FOOD, mode="DECAY", factor=0.5, request_id="r1")
    assert (answer["matched"], answer["changed"]) == (35, 35)
    assert _importances(world) == {0.4}


def test_a_preview_of_hidden_statuses_needs_the_review_right(world: World) -> None:
    kept = world.put(status="ARCHIVED")

    def preview(caller: Any) -> Any:
        request = ForgetRequest(
            Namespace(*NS), filters=_archived(), mode=ForgetMode.HARD, validate_only=True
        )
        return world.node.memory.forget(caller, request, Control())

    error = error_of(lambda: preview(READER))
    assert (error.code, error.reason) == (Code.PERMISSION_DENIED, "REVIEW_RIGHT_NEEDED")
    assert preview(REVIEWER).ids == (kept,)


def _archived() -> Condition:
    return Condition("status", Equals("ARCHIVED"))


@pytest.mark.parametrize("preview", [False, True])
@pytest.mark.parametrize("by", ["filters", "ids"])
def test_a_forget_takes_lazy_writes_that_are_acknowledged(
    make_world: Make, by: str, preview: bool
) -> None:
    world = make_world(storage__wal_sync="every_1000ms")
    for _ in range(5):
        kept = world.put(metadata={"topic": "food"})
        selector: dict[str, Any] = {"filters": FOOD} if by == "filters" else {"ids": [kept]}
        answer = world.forget(**selector, mode="HARD", validate_only=preview)
        assert kept in answer["ids"]


def test_an_erased_tenant_loses_lazy_writes_that_are_acknowledged(make_world: Make) -> None:
    world = make_world(storage__wal_sync="every_1000ms")
    world.put()
    assert world.admin.erase_tenant(REVIEWER, "acme", "", False, "asked")[0] == 1
    assert world.all() == []
