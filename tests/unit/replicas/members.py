"""A small group of nodes in this process: what tests of roles need, without processes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from memsvc.config import Settings
from memsvc.domain.types import Caller, Namespace, NewMemory, WriteRequest
from memsvc.rpc.group import add_group
from memsvc.rpc.replication import ReplicationOptions, ReplicationServer
from memsvc.service.api import Control
from memsvc.service.node import Node, system_clock
from replicas.group import Group
from replicas.promotion import Promotion
from replicas.replica import REPLICA
from replicas.role import read_role
from tests.ports import free_port
from tests.waiting import until


class Member:
    """A node of a group in this process, behind the real service for other nodes."""

    def __init__(
        self, data_dir: Path, role: str, listen: str, nodes: Sequence[str], **replication: object
    ) -> None:
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
                    **replication,
                },
            }
        )
        self.up = False

    def start(self, clock: Callable[[], int] = system_clock) -> None:
        """Opens what is on its disk, as a start of the process does."""
        follows = not read_role(self.settings.storage.data_dir, self.settings).leads
        self.node = Node(self.settings, clock=clock, upkeep=False, follows=follows, asks_first=True)
        self.group = Group(self.node, self.settings, on_restart=lambda _reason: None)
        options = ReplicationOptions.from_settings(self.settings)
        self._server = ReplicationServer(self.node.feed, self.node.bootstraps, options)
        self._server.add(lambda to, door: add_group(self.group, to, door))
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

    def write(self, text: str) -> None:
        request = WriteRequest(Namespace("acme", "helper"), items=(NewMemory(content=text),))
        self.node.memory.write(Caller("test"), request, Control())


def make_members(folder: Path, **replication: object) -> list[Member]:
    """A primary and two replicas with the same store, not started."""
    listens = [f"127.0.0.1:{free_port()}" for _ in range(3)]
    made = [
        Member(folder / str(n), "replica" if n else "primary", listen, listens, **replication)
        for n, listen in enumerate(listens)
    ]
    first = made[0].settings.storage.data_dir
    Node(made[0].settings, upkeep=False).stop()
    for copy in made[1:]:
        data_dir = copy.settings.storage.data_dir
        shutil.copytree(first, data_dir)
        (data_dir / "node_id").unlink()
        (data_dir / REPLICA).touch()
    return made


def await_level(members: Sequence[Member]) -> None:
    """Waits until the replicas follow the first, count, and know what it wants."""
    acks = members[0].node.feed.acks
    until(lambda: len(acks.followers) == len(members) - 1, 30, "all to follow")
    until(lambda: acks.lease, 30, "them to be counted")
    until(lambda: all(m.group.role.min_acks for m in members[1:]), 30, "min_acks to be known")
