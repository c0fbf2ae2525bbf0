"""What people are told to do where a group has no primary."""

from __future__ import annotations

from memsvc.domain.group import Role, Seen, leader


def advice(role: Role, mine: Seen, others: list[Seen], obstacle: str = "") -> str:
    """As a node sees it that is ``role`` and told of as ``mine``; "" where there is a primary, and
    nobody was told to leave it. ``obstacle``: what keeps a promotion from being finished."""
    if role.leads:
        left = [node for node in others if not node.leads and node.fence > mine.standing.epoch]
        if not left:
            return ""
        found = f"{left[0].listen} was told to follow {left[0].primary}, which does not lead"
    elif leader(others, role.fence) is not None:
        return ""
    elif role.forcing:
        found = "this node was about to be primary; that is tried again by itself"
        return f"{found}: {obstacle}" if obstacle else found
    else:
        found = f"no primary: {role.primary} is not heard of, or does not lead"
    replicas = [node for node in (mine, *others) if not node.leads]
    best = max(replicas, key=lambda node: node.reach)
    return f"{found}. If it does not come back: memsvc promote --force --address {best.address}"
