"""Which node a call should go to, by what is known of the nodes.

A pure state: it is told what happened and says where to go next; it calls nobody, reads no
clock and draws no random numbers. ``memsvc/client/routed.py`` does the calls.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from memsvc.domain.recovery import Recovery

LAG_STEP_MS: Final = 250
"""Lags that differ by less are taken for equal, so that not all reads go to one replica."""
_ANY_HOST: Final = ("", "0.0.0.0", "[::]")


@dataclass(frozen=True, slots=True)
class Report:
    """What a node said of itself. ``primary``: it takes writes. ``lag_ms`` milliseconds
    behind its primary, ``degraded`` its level, 0 to 4."""

    ready: bool = True
    primary: bool = False
    epoch: int = 0
    store_id: str = ""
    lag_ms: int = 0
    degraded: int = 0


@dataclass(slots=True)
class _Node:
    address: str
    given: bool
    """Given by the caller, not learned from a refusal."""
    checked: bool = False
    up: bool = False
    report: Report = Report(ready=False)
    recovery: Recovery = field(default_factory=Recovery)
    in_flight: int = 0
    calls: int = 0
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class NodeState:
    """What a router knows of one node, for people and tests."""

    address: str
    role: str
    """ "primary", "replica", or "" while nothing is known or it does not answer."""
    reads: bool
    """Whether reads go there: a replica that is fit for it."""
    lag_ms: int
    epoch: int
    in_flight: int
    """Calls of this router that it has not answered yet."""
    trouble: str
    """Why it does not answer; "" when it does, or was not asked yet."""


class RoutingTable:
    """The nodes of one store. Not thread-safe.

    ``addresses`` are host:port of nodes whose roles need not be known. A replica that lags
    more than ``max_lag_ms`` is not read from.
    """

    def __init__(self, addresses: Sequence[str], max_lag_ms: int) -> None:
        if not addresses:
            raise ValueError("at least one address is needed")
        self._nodes = {address: _Node(address, given=True) for address in addresses}
        self._max_lag_ms = max_lag_ms
        self._epochs: dict[str, int] = {}
        """Highest epoch that any node of a store has told."""
        self._named = ""
        """Told to be the primary by a node that is not; "" = nobody."""

    # -- what happened -----------------------------------------------------------------

    def checked(self, address: str, report: Report, *, regular: bool = True) -> None:
        """A node answered a health check. Only ``regular`` ones count towards coming back:
        while a call waits for a primary there are many in a second."""
        node = self._nodes.get(address)
        if node is None:
            return
        good = report.ready and report.lag_ms <= self._max_lag_ms
        if regular or not good or not node.checked:
            node.recovery.check(good)
        node.checked, node.up, node.report = True, report.ready, report
        node.trouble = "" if report.ready else "it says that it is not ready"
        known = self._epochs.get(report.store_id, 0)
        self._epochs[report.store_id] = max(known, report.epoch)
        if self._named == address:
            self._named = ""
        self._forget_learned()

    def failed(self, address: str, trouble: str = "") -> None:
        """A node did not answer a check or a call, or is about to end. ``trouble`` says more,
        for people."""
        node = self._nodes.get(address)
        if node is None:
            return
        node.recovery.check(False)
        node.checked, node.up, node.trouble = True, False, trouble
        if self._named == address:
            self._named = ""
        self._forget_learned()

    def refused(self, address: str, named: str) -> None:
        """A node said that it is not the primary, and who is ("" = it does not know)."""
        node = self._nodes.get(address)
        if node is not None:
            node.report = replace(node.report, primary=False)
        if named == address or named.rpartition(":")[0] in _ANY_HOST:
            # An address to listen on, not one to connect to: replication.advertise is not set.
            named = ""
        if (known := self._nodes.get(named)) and known.checked and self._replaced(known):
            named = ""
        self._named = named
        if named and named not in self._nodes:
            self._nodes[named] = _Node(named, given=False)
        self._forget_learned()

    def began(self, address: str) -> None:
        """A call to a node began."""
        if node := self._nodes.get(address):
            node.in_flight += 1
            node.calls += 1

    def ended(self, address: str) -> None:
        """It ended, however."""
        if node := self._nodes.get(address):
            node.in_flight = max(0, node.in_flight - 1)

    def _forget_learned(self) -> None:
        """A node that nobody gave is of interest while it is the primary, or named as such."""
        for node in list(self._nodes.values()):
            if not node.given and node.address != self._named and not self._writes(node):
                del self._nodes[node.address]

    # -- where to go -------------------------------------------------------------------

    @property
    def addresses(self) -> list[str]:
        """All nodes that should be checked."""
        return list(self._nodes)

    @property
    def settled(self) -> bool:
        """Whether each node has been heard of once, or found silent."""
        return all(node.checked for node in self._nodes.values())

    @property
    def primary(self) -> str:
        """The node that takes writes; "" while nobody is known to."""
        found = [node for node in self._nodes.values() if self._writes(node)]
        if found:
            return max(found, key=lambda node: node.report.epoch).address
        return self._named

    def writer(self, held: Container[str] = ()) -> str:
        """Where to send a change: to the primary; while nobody is known to be it, to any node
        that answers, since it names the one that is. None of ``held``, which are to be left
        alone for a moment; "" = wait."""
        primary = self.primary
        if primary or not self.settled:
            return "" if primary in held else primary
        found = [n for n in self._nodes.values() if self._reads(n) and n.address not in held]
        # Who has the newest epoch knows best.
        return min(found, key=lambda n: (-n.report.epoch, _health(n))).address if found else ""

    def reader(self, tried: Container[str] = ()) -> str:
        """The healthiest replica that was not ``tried``; "" when none is good."""
        found = [
            node
            for node in self._nodes.values()
            if node.recovery.fit and self._reads(node) and node.address not in tried
        ]
        return min(found, key=_health).address if found else ""

    def last_resort(self, tried: Container[str] = ()) -> str:
        """A replica that answers but was found too far behind, or failed a moment ago: better
        than no answer when there is no primary either. "" when there is none."""
        found = [n for n in self._nodes.values() if self._reads(n) and n.address not in tried]
        return min(found, key=_health).address if found else ""

    def lags(self, address: str) -> bool:
        """Whether a node is too far behind to be read from without a mark."""
        node = self._nodes.get(address)
        return node is not None and node.report.lag_ms > self._max_lag_ms

    def is_fallback(self, primary: str) -> bool:
        """Whether a read from the primary is one that a replica should have answered."""
        return any(node.given and node.address != primary for node in self._nodes.values())

    def states(self) -> tuple[NodeState, ...]:
        """What is known of each node."""
        return tuple(
            NodeState(
                node.address,
                ("primary" if node.report.primary else "replica") if node.up else "",
                node.recovery.fit and self._reads(node),
                node.report.lag_ms,
                node.report.epoch,
                node.in_flight,
                node.trouble,
            )
            for node in self._nodes.values()
        )

    def _writes(self, node: _Node) -> bool:
        # One that was replaced and does not know it yet is no primary, also while the new one
        # is not reached: what it took would be lost.
        return node.up and node.report.primary and not self._replaced(node)

    def _replaced(self, node: _Node) -> bool:
        return node.report.epoch < self._epochs.get(node.report.store_id, 0)

    def _reads(self, node: _Node) -> bool:
        return node.given and node.up and not node.report.primary


def _health(node: _Node) -> tuple[int, int, int, int]:
    report = node.report
    return report.degraded, report.lag_ms // LAG_STEP_MS, node.in_flight, node.calls
