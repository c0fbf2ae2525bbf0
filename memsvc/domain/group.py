"""The nodes of one store: which of them may become primary, and when a primary is one no longer.

Safety rests on two rules. An acknowledged entry is on the disks of ``min_acks`` replicas; and a
node that is fenced for an epoch neither acknowledges nor follows a primary of an epoch before.
So whoever has fenced all nodes but ``min_acks - 1`` knows of a node that has every acknowledged
entry, and no further one can be acknowledged behind its back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from memsvc.domain.replication import Standing

EPOCHS_APART: Final = 1 << 16
"""Promotions begin epochs that are multiples of it. A primary that has lost positions begins the
next one by itself and asks nobody, so without room in between one that was cut off and crashed
would claim the very epoch of the node that was promoted in its place."""


@dataclass(frozen=True, slots=True)
class Role:
    """What a node is, as its data directory remembers it.

    ``leads``: it takes writes. ``primary``: replication.listen of the node it follows ("" where
    it leads); ``address``: where clients reach that one, as far as is known. ``fence``: it follows
    no primary of an epoch below, nor is one. ``promoting``: the epoch that it was about to begin
    when it asked its primary to hand over, 0 = none. ``min_acks``: what its primary last told.
    ``configured``: what the configuration said then; when it is changed, it counts anew.
    ``forcing``: the epoch that it promised itself when a person had it promoted by force, and
    for which others may be fenced; 0 = none, or that came to an end.
    """

    leads: bool
    primary: str = ""
    address: str = ""
    fence: int = 0
    promoting: int = 0
    min_acks: int = 0
    configured: str = ""
    forcing: int = 0

    def following(self, primary: str, fence: int) -> Role:
        """The role of a node that was told to follow another."""
        return replace(
            self, leads=False, primary=primary, address="", fence=fence, promoting=0, forcing=0
        )

    def leading(self, epoch: int) -> Role:
        """The role of the primary of an epoch."""
        return Role(True, fence=epoch, configured=self.configured)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a node of the group says of itself. ``listen`` is its replication.listen as it stands
    in replication.nodes, the others as in ``Role``."""

    listen: str
    node_id: str
    leads: bool
    standing: Standing
    fence: int = 0
    primary: str = ""
    address: str = ""
    min_acks: int = 0

    @property
    def reach(self) -> tuple[int, int]:
        """How far its log goes: (epoch, position)."""
        return self.standing.epoch, self.standing.position

    @property
    def rank(self) -> tuple[int, str]:
        """Of two primaries the one that ranks higher is right. Two of one epoch come only of two
        promotions at once that both accepted loss; the name decides, so that all agree."""
        return self.standing.epoch, self.node_id


def next_epoch(nodes: Sequence[Seen]) -> int:
    """An epoch for a promotion: above all that the nodes have seen or promised, and all that a
    former primary may have begun alone meanwhile."""
    seen = max(max(node.fence, node.standing.epoch) for node in nodes)
    return (seen // EPOCHS_APART + 1) * EPOCHS_APART


def last_primary(candidate: Seen, others: Sequence[Seen]) -> str:
    """The primary of the last epoch as far as is known; "" where another node was told to follow
    a later one than the candidate knows of. That one may have led or not, and the one that the
    candidate followed was perhaps not the last: it cannot say that nothing is missing. Nor can
    one that the candidate was told to follow, and that was never promoted to the end."""

    def known(node: Seen) -> int:
        return max(node.fence, node.standing.epoch)

    for node in others:
        told = node.listen if node.leads else node.primary
        if known(node) > known(candidate) and told != candidate.primary:
            return ""
        if node.listen == candidate.primary and told not in (node.listen, candidate.listen):
            began = node.standing.epoch >= candidate.fence
            if not began:
                return ""
    return candidate.primary


def further(candidate: Seen, others: Sequence[Seen], former: str) -> Seen | None:
    """A replica that has more of the log than the candidate, if there is one."""
    replicas = [node for node in others if node.listen != former]
    best = max(replicas, key=lambda node: node.reach, default=candidate)
    return best if best.reach > candidate.reach else None


def may_lack(candidate: Seen, others: Sequence[Seen], former: str, size: int) -> bool:
    """Whether acknowledged entries may be missing at the candidate, which has as much of the
    log as each replica among ``others``, the nodes that answered.

    ``former`` is the primary of the last epoch ("" = not known), ``size`` the number of nodes in
    the group. Where the former primary itself answered, its log tells; else each acknowledged
    entry is on ``min_acks`` of the other nodes, so one of those that answered has it unless as
    many kept silent.
    """
    old = next((node for node in others if node.listen == former), None)
    if old is not None:
        return old.reach > candidate.reach
    answered = [candidate, *others]
    silent = (size - 1) - len(answered)
    return silent >= min(node.min_acks for node in answered)


def deposed(me: Seen, others: Sequence[Seen]) -> Seen | None:
    """The primary of a later epoch, if one of the others is: this node is none, then."""
    later = leader(others, me.fence)
    return later if later is not None and later.rank > me.rank else None


def leader(others: Sequence[Seen], fence: int) -> Seen | None:
    """The node that a follower should follow, which may have been promoted meanwhile."""
    leaders = [node for node in others if node.leads and node.standing.epoch >= fence]
    return max(leaders, key=lambda node: node.rank, default=None)
