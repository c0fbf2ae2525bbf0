"""A node that crashes while it is promoted by force, after others were told to follow it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from memsvc.config import Settings
from memsvc.domain.group import EPOCHS_APART, Role, Seen
from memsvc.domain.replication import Standing
from memsvc.domain.types import Caller, Namespace, NewMemory, WriteRequest
from memsvc.rpc.group import add_group
from memsvc.rpc.replication import ReplicationOptions, ReplicationServer
from memsvc.service.api import Control
from memsvc.service.node import Node
from replicas import group as groups
from replicas.advice import advice
from replicas.group import Group
from replicas.promotion import Promotion
from replicas.replica import REPLICA
from replicas.role import read_role
from tests.ports import free_port
from tests.waiting import until


class Crash(BaseException):
    """What nothing in the code under test handles."""


class Member:
    """A node of a group in this process, behind the real service for other nodes."""

    def __init__(self, data_dir: Path, role: str, listen: str, nodes: Sequence[str]) -> None:
        self.listen = listen
        self.settings = Settings.model_validate(
            {
                "node": {"role": role},
                "index": {"dimension": 8},
                "storage": {"data_dir": data_dir, "reserve_bytes": 0},
                "replication": {
                    "listen": listen,
                    "advertise": f"for-clients-of-{listen}",
                    "nodes": list(nodes),
                    "primary": nodes[0] if role == "replica" else "",
                    "min_acks": 1,
                },
            }
        )
        self.up = False

    def start(self) -> None:
        """Opens what is on its disk, as a start of the process does."""
        follows = not read_role(self.settings.storage.data_dir, self.settings).leads
        self.node = Node(self.settings, upkeep=False, follows=follows, asks_first=True)
        self.group = Group(self.node, self.settings, on_restart=lambda _reason: None)
        options = ReplicationOptions.from_settings(self.settings)
        self._server = ReplicationServer(self.node.feed, self.node.bootstraps, options)
        self._server.add(lambda to, token: add_group(self.group, to, token))
        self._server.start()
        self.group.start()
        self.promotion = Promotion(self.group)
        self.promotion.start()
        self.up = True

    def stop(self) -> None:
        """Ends it; what is on its disk is what a crash would leave too."""
        if self.up:
            self.up = False
            self._server.stop()
            self.promotion.stop()
            self.group.stop()
            self.node.stop()

    def crash_after_fencing(self) -> None:
        """Is promoted by force up to where it would take over."""
        others, silent = self.group.look()

        def crash(_epoch: int) -> Standing:
            raise Crash

        self.group.take_over = crash  # type: ignore[method-assign]
        # What a person who asks does; a crash leaves no time to give up in.
        self.group.give_up = lambda *_args, **_more: None  # type: ignore[method-assign]
        with pytest.raises(Crash):
            self.promotion._by_force(others, silent, accept_loss=False)
        self.stop()

    def write(self, text: str) -> None:
        request = WriteRequest(Namespace("acme", "helper"), items=(NewMemory(content=text),))
        self.node.memory.write(Caller("test"), request, Control())


@pytest.fixture
def members(tmp_path: Path) -> Iterator[list[Member]]:
    """A primary and two replicas, level with it."""
    listens = [f"127.0.0.1:{free_port()}" for _ in range(3)]
    roles = ("primary", "replica", "replica")
    made = [
        Member(tmp_path / role / str(n), role, listen, listens)
        for n, (role, listen) in enumerate(zip(roles, listens, strict=True))
    ]
    first = made[0].settings.storage.data_dir
    Node(made[0].settings, upkeep=False).stop()
    for copy in made[1:]:
        folder = copy.settings.storage.data_dir
        shutil.copytree(first, folder)
        (folder / "node_id").unlink()
        (folder / REPLICA).touch()
    for member in made:
        member.start()
    until(lambda: len(made[0].node.feed.acks.followers) == 2, 30, "both to follow")
    until(lambda: made[0].node.feed.acks.lease, 30, "them to be counted")
    until(lambda: all(m.group.role.min_acks for m in made[1:]), 30, "what is wanted to be known")
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
    b.crash_after_fencing()
    assert (c.group.role.primary, c.group.role.fence) == (b.listen, EPOCHS_APART)
    b.start()
    until(lambda: _leads(b), 30, "it to go on")
    until(lambda: b.node.feed.acks.lease, 30, "the other to follow")
    b.write("after")
    a.start()
    until(lambda: a.node.standing() == c.node.standing() == b.node.standing(), 30, "all level")
    assert not a.group.role.leads


def test_a_broken_off_promotion_is_not_gone_on_with_once_another_node_leads(
    members: list[Member],
) -> None:
    a, b, c = members
    a.stop()
    b.crash_after_fencing()
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
    b.crash_after_fencing()
    until(lambda: "--force" in " ".join(c.node.health().reasons), 30, "the other to say so")
    assert f"--address for-clients-of-{c.listen}" in " ".join(c.node.health().reasons)
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
