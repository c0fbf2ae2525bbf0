"""Finding memories of one agent that say the same, letter by letter."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from memsvc.client import ForgetMode, Include, MemoryClient, Touch
from memsvc.domain.types import Namespace
from memsvc.v1 import memory_service_pb2 as pb

FORGET_BATCH = 1_000


@dataclass(slots=True)
class Group:
    """Memories with the same text: the one to keep, and the others."""

    keep: pb.Hit
    drop: list[pb.Hit] = field(default_factory=list)

    @property
    def importance(self) -> float:
        """The highest stored importance of all."""
        return max(hit.importance_stored for hit in (self.keep, *self.drop))


def normalised(text: str) -> str:
    """A text without what does not change its meaning: case, width, composition, spaces."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def find_duplicates(hits: Iterable[pb.Hit]) -> list[Group]:
    """Groups of two and more. The oldest is kept, since it tells when a thing was first
    known; its id breaks a tie."""
    by_text: dict[str, list[pb.Hit]] = {}
    for hit in hits:
        text = normalised(hit.content or hit.summary)
        if text:
            by_text.setdefault(text, []).append(hit)
    groups = []
    for same in by_text.values():
        if len(same) > 1:
            same.sort(key=lambda hit: (hit.metadata.ts, hit.created_at, hit.id))
            groups.append(Group(same[0], same[1:]))
    return groups


def clean_up(client: MemoryClient, namespace: Namespace, groups: list[Group]) -> Iterator[int]:
    """Gives the kept ones the highest importance of their group, then erases the others;
    yields how many were erased, batch by batch. May be broken off and run again."""
    raised = [
        # The time is named because a touch without one means "seen again now".
        Touch(group.keep.id, ts=group.keep.metadata.ts, importance=group.importance)
        for group in groups
        if group.importance > group.keep.importance_stored
    ]
    for start in range(0, len(raised), FORGET_BATCH):
        client.write(namespace, raised[start : start + FORGET_BATCH])
    ids = [hit.id for group in groups for hit in group.drop]
    for start in range(0, len(ids), FORGET_BATCH):
        answer = client.forget(
            namespace,
            ids=ids[start : start + FORGET_BATCH],
            mode=ForgetMode.HARD,
            reason="duplicate content",
        )
        yield answer.changed


def all_hits(client: MemoryClient, namespace: Namespace) -> Iterator[pb.Hit]:
    """Every visible memory with its full text."""
    return client.browse(namespace, include=Include(content=True))
