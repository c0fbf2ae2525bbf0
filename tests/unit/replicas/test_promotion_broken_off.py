"""A node that crashes while it is promoted by force, after others were told to follow it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from memsvc.domain.group import EPOCHS_APART, Role, Seen
from memsvc.domain.replication import Standing
from memsvc.service.admin import AdminService
from replicas import group as groups
from replicas.advice import advice
from tests.unit.replicas.members import Member, await_level, make_members
from tests.waiting import until


class Crash(BaseException):
    """What nothing in the code under test handles."""


def crash_after_fencing(member: Member, *, accept_loss: bool = False) -> None:
    """It is promoted by force up to where it would take over."""
    others, silent = member.group.look()

    def crash(_epoch: int) -> Standing:
        raise Crash

    member.group.take_over = crash  # type: ignore[method-assign]
    # A crash leaves no time to give up in.
    member.group.give_up = lambda *_args, **_more: None  # type: ignore[method-assign]
    with pytest.raises(Crash):
        member.promotion._by_force(others, silent, accept_loss)
    member.stop()


@pytest.fixture
def members(tmp_path: Path) -> Iterator[list[Member]]:
    """A primary and two replicas, level with it."""
    made = make_members(tmp_path)
    for member in made:
        member.start()
    await_level(made)
    yield made
    for member in made:
        member.stop()


def _leads(member: Member) -> bool:
    return member.group.role.leads and not member.node.leading.follows


def test_a_crash_between_fencing_and_taking_over_leaves_no_group_without_a_primary(
    members: list[Member],
) -> None:
    a, b, c = members
    a.write("before")
    a.stop()
    crash_after_fencing(b)
    assert (c.group.role.primary, c.group.role.fence) == (b.listen, EPOCHS_APART)
    b.start()
    until(lambda: _leads(b), 30, "it to go on")
    until(lambda: b.node.feed.acks.lease, 30, "the other to follow")
    b.write("after")
    a.start()
    until(lambda: a.node.standing() == c.node.standing() == b.node.standing(), 30, "all level")
    assert not a.group.role.leads


def test_where_loss_was_accepted_a_person_asks_again(members: list[Member]) -> None:
    a, b, _c = members
    a.stop()
    crash_after_fencing(b, accept_loss=True)
    b.start()
    assert not b.group.role.forcing and not b.promotion._finishing.is_alive()
    b.promotion.promote(force=True, accept_loss=True)
    assert _leads(b)


def test_a_broken_off_promotion_is_not_gone_on_with_once_another_node_leads(
    members: list[Member],
) -> None:
    a, b, c = members
    a.stop()
    crash_after_fencing(b)
    c.promotion.promote(force=True, accept_loss=True)
    b.start()
    until(lambda: not b.group.role.forcing, 30, "it to give way")
    until(lambda: b.node.standing() == c.node.standing(), 30, "it to follow")
    assert (_leads(b), _leads(c)) == (False, True)


def test_a_broken_off_promotion_accepts_no_loss_and_says_what_it_waits_for(
    members: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "NO_PRIMARY_S", 0.0)
    a, b, c = members
    a.stop()
    crash_after_fencing(b)
    until(lambda: "--force" in " ".join(c.node.health().reasons), 30, "the other to say so")
    assert f"--address for-clients-of-{c.listen}" in " ".join(c.node.health().reasons)
    inspected = AdminService(c.node).inspect("", "", False, 0, "")["replication"]
    assert isinstance(inspected, dict) and inspected["troubles"] == c.node.leading.troubles
    c.stop()
    b.start()
    until(lambda: "may be missing" in " ".join(b.node.health().reasons), 30, "it to say so")
    assert not b.group.role.leads
    c.start()
    until(lambda: _leads(b), 30, "it to go on")
    until(lambda: not b.node.health().reasons, 30, "nothing to be left to say")


def test_a_primary_that_was_fenced_leads_on_where_the_candidate_that_crashed_has_less(
    members: list[Member],
) -> None:
    a, b, c = members
    b.group._replica.stop()  # type: ignore[union-attr]  # it falls behind
    a.write("acknowledged by the other replica")
    until(lambda: c.node.standing() == a.node.standing(), 30, "it to be there")
    others, silent = b.group.look()
    b.group.take_over = lambda _epoch: (_ for _ in ()).throw(Crash)  # type: ignore[method-assign]
    # It was asked when it was level, so that it began.
    b.promotion._check = lambda *_args: False  # type: ignore[method-assign]
    b.group.peers.lead = lambda *_args: (_ for _ in ()).throw(Crash)  # type: ignore[method-assign]
    with pytest.raises(Crash):
        b.promotion._by_force(others, silent, accept_loss=False)
    b.stop()
    assert not a.group.role.leads
    b.start()
    until(lambda: any(map(_leads, members)), 30, "somebody to lead")
    until(lambda: len({m.node.standing() for m in members}) == 1, 30, "all to be level")
    assert not _leads(b)


def seen(listen: str, position: int, epoch: int = 1, **more: object) -> Seen:
    address = f"{listen}-clients"
    return Seen(listen, listen, False, Standing("s", epoch, position), address=address, **more)  # type: ignore[arg-type]


def test_without_a_primary_the_command_names_the_node_with_the_most() -> None:

    role = Role(False, "p", fence=0)
    told = advice(role, seen("a", 5), [seen("b", 7)])
    assert told.endswith("memsvc promote --force --address b-clients")
    old = Seen("p", "p", True, Standing("s", 1, 9), address="p-clients")
    assert advice(role, seen("a", 5), [seen("b", 7), old]) == ""
    # A primary that the others were told to leave, by a node that never led.
    left = [seen("b", 7, fence=5, primary="c"), seen("d", 6, fence=5, primary="c")]
    told = advice(Role(True), old, left)
    assert told.startswith("b was told to follow c, which does not lead")
    assert told.endswith("--address b-clients")
    assert advice(Role(True), old, [seen("b", 7)]) == ""
