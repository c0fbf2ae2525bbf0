"""Crashes, cut networks, stalled disks and promotions at random moments: no acknowledged write
is lost.

``GROUP_ROUNDS`` sets the number of rounds, ``GROUP_SEED`` the random numbers.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import grpc
import pytest

from memsvc.admin.v1 import admin_service_pb2 as admin_pb
from memsvc.admin.v1 import admin_service_pb2_grpc as admin_rpc
from memsvc.v1 import memory_service_pb2 as pb
from tests.scenarios import groups as g
from tests.scenarios import harness as h
from tests.scenarios import replication as r
from tests.scenarios.disks import small_disk, stalled
from tests.scenarios.network import Switch
from tests.waiting import until

SEED = int(os.environ.get("GROUP_SEED", "0")) or random.randrange(1 << 30)
WRITERS = 3


class Cluster:
    """Three nodes, what was acknowledged by any of them, and what may go wrong with them."""

    def __init__(self, nodes: list[h.Node], switch: Switch, draw: random.Random) -> None:
        self.nodes = nodes
        self.switch = switch
        self.draw = draw
        self.acknowledged: set[int] = set()
        self.down: set[h.Node] = set()
        self.stopping = threading.Event()
        self._counter = iter(range(1 << 30))
        self._lock = threading.Lock()

    # -- load --------------------------------------------------------------------------

    @contextmanager
    def load(self) -> Iterator[None]:
        """Writes go on meanwhile, snapshots are taken, and who ended to begin anew is started."""
        jobs: list[Callable[[], None]] = [*[self._write] * WRITERS, self._keep, self._snapshots]
        threads = [threading.Thread(target=job) for job in jobs]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.stopping.set()
            for thread in threads:
                thread.join()

    def _write(self) -> None:
        stubs = [h.rpc.MemoryServiceStub(_channel(node)) for node in self.nodes]
        while not self.stopping.is_set():
            with self._lock:
                number = next(self._counter)
            request = pb.WriteRequest(
                namespace=h.namespace(), items=[h.memory(number)], request_id=f"write-{number}"
            )
            while not self.stopping.is_set():
                if any(_taken(stub, request) for stub in stubs):
                    self.acknowledged.add(number)
                    break
                time.sleep(0.02)

    def _keep(self) -> None:
        while not self.stopping.wait(0.1):
            for node in self.nodes:
                assert node.process is not None
                if node not in self.down and node.process.poll() == 75:
                    node.start(wait=False)

    def _snapshots(self) -> None:
        # Connections of its own: one that another thread closes takes the process with it.
        stubs = [admin_rpc.AdminServiceStub(_channel(node)) for node in self.nodes]
        for stub in itertools.cycle(stubs):
            if self.stopping.wait(0.7):
                return
            with suppress(grpc.RpcError):
                stub.TakeSnapshot(admin_pb.TakeSnapshotRequest(), timeout=5)

    # -- what goes wrong ---------------------------------------------------------------

    def primary(self) -> h.Node:
        """The one that is primary now."""
        return next(node for node in self.nodes if g.role(node) == pb.ROLE_PRIMARY)

    def crash(self) -> None:
        """kill -9 of a node, which comes back, perhaps after another took its place."""
        node = self.draw.choice(self.nodes)
        with self._away(node):
            node.kill()
            self._perhaps_replace(node)
            node.start(wait=False)

    def cut(self) -> None:
        """A node is off the network for a while, perhaps replaced meanwhile."""
        node = self.draw.choice(self.nodes)
        self.switch.cut(node.folder.name)
        self._perhaps_replace(node)
        self.switch.heal(node.folder.name)

    def stall(self) -> None:
        """The disk of a node takes nothing for a while; it is perhaps replaced meanwhile."""
        node = self.draw.choice(self.nodes)
        with stalled(node.data_dir.parent):
            self._perhaps_replace(node)

    def wipe(self) -> None:
        """A replica begins with nothing, and crashes while it copies."""
        primary = self.primary()
        node = self.draw.choice([node for node in self.nodes if node is not primary])
        with self._away(node):
            node.kill()
            shutil.rmtree(node.data_dir)
            node.start(wait=False)
            time.sleep(self.draw.uniform(0.5, 2.0))
            node.kill()
            node.start(wait=False)

    def switch_over(self) -> None:
        """Another is to be primary, and one of the two crashes at any moment of it."""
        old = self.primary()
        new = self.draw.choice([node for node in self.nodes if node is not old])
        thread = threading.Thread(target=_tried, args=(new,))
        thread.start()
        time.sleep(self.draw.uniform(0.0, 0.1))
        victim = self.draw.choice([old, new])
        with self._away(victim):
            victim.kill()
            thread.join()
            victim.start(wait=False)

    @contextmanager
    def _away(self, node: h.Node) -> Iterator[None]:
        """The keeper leaves the node alone."""
        self.down.add(node)
        yield
        self.down.discard(node)

    def _perhaps_replace(self, node: h.Node) -> None:
        time.sleep(self.draw.uniform(0.0, 1.0))
        if self.draw.random() < 0.6:
            for other in self.draw.sample(self.nodes, len(self.nodes)):
                if other is not node and _tried(other, force=True):
                    break
        time.sleep(self.draw.uniform(0.0, 1.0))

    # -- what must hold ----------------------------------------------------------------

    def heal(self) -> None:
        """Waits until all have found each other, and no answer of theirs may be stale."""

        def whole() -> bool:
            try:
                found = [r.health(node) for node in self.nodes]
                fresh = all(h.by_vector(node, 0).degraded.level == 0 for node in self.nodes)
            except grpc.RpcError:
                for node in self.nodes:
                    node.disconnect()
                return False
            roles = sorted(answer.role for answer in found)
            lags = [answer.lag_positions for answer in found]
            ready = all(answer.ready for answer in found)
            return (
                ready
                and fresh
                and roles == [pb.ROLE_PRIMARY, pb.ROLE_REPLICA, pb.ROLE_REPLICA]
                and (max(lags) < 50)
            )

        until(whole, 90, "one primary and two replicas that follow it")

    def check(self) -> None:
        """Everything acknowledged is at every node, once; the logs are one."""
        primary = self.primary()
        r.level(primary, *(node for node in self.nodes if node is not primary))
        wanted = {h.memory(number).memory.content for number in self.acknowledged}
        for node in self.nodes:
            contents = [hit.content for hit in h.browse(node).values()]
            assert len(set(contents)) == len(contents), "a memory is there twice"
            assert wanted <= set(contents), f"{node.folder.name} lost acknowledged writes"
        for node in self.nodes:
            assert node.stop() == 0
        assert len({r.digest(node) for node in self.nodes}) == 1
        for node in self.nodes[1:]:
            r.same_records(self.nodes[0], node)


def _channel(node: h.Node) -> grpc.Channel:
    options = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.max_reconnect_backoff_ms", 200),
    ]
    return grpc.insecure_channel(f"{node.host}:{node.port}", options=options)


def _taken(stub: h.rpc.MemoryServiceStub, request: pb.WriteRequest) -> bool:
    """Whether a write was acknowledged."""
    try:
        stub.Write(request, timeout=3)
    except grpc.RpcError:
        return False
    return True


def _tried(node: h.Node, *, force: bool = False) -> bool:
    try:
        g.promote(node, force=force)
    except (grpc.RpcError, ValueError):
        return False
    return True


@pytest.mark.parametrize(
    "rounds", [5, pytest.param(int(os.environ.get("GROUP_ROUNDS", "50")), marks=pytest.mark.soak)]
)
def test_no_acknowledged_write_is_lost_by_crashes_cuts_and_promotions(
    make_node: r.MakeNode, rounds: int
) -> None:
    draw = random.Random(SEED)
    h.tell(f"GROUP_SEED={SEED}")
    with Switch() as switch, ExitStack() as disks:
        nodes = g.make_group(
            make_node,
            switch=switch,
            replication__min_acks=1,
            replication__lease_ms=1_000,
            storage__seal_rows=50,
            storage__snapshot_keep=2,
        )
        for node in nodes:
            node.configure(storage__snapshot_dir=str(node.folder / "snapshots"))
            node.data_dir = disks.enter_context(small_disk(node.folder, "ext4", 400)) / "data"
            node.configure(storage__data_dir=str(node.data_dir))
        g.start(nodes)
        cluster = Cluster(nodes, switch, draw)
        faults = [
            cluster.crash,
            cluster.cut,
            cluster.stall,
            cluster.wipe,
            cluster.switch_over,
        ]
        with cluster.load():
            for number in range(rounds):
                fault = faults[number] if rounds == len(faults) else draw.choice(faults)
                before = len(cluster.acknowledged)
                fault()
                cluster.heal()
                until(
                    lambda before=before: len(cluster.acknowledged) > before,  # type: ignore[misc]
                    60,
                    f"writes to go on after {fault.__name__}",
                )
                h.tell(f"round {number}: {fault.__name__}, {len(cluster.acknowledged)} writes")
        cluster.heal()
        cluster.check()
