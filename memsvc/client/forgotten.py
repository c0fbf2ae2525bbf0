"""What a Forget did, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from memsvc.v1 import memory_service_pb2 as pb


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What was forgotten, or (``validate_only``) would be."""

    matched: int = 0
    """Memories that ids and filters select."""
    changed: int = 0
    """Those of them that are otherwise now; 0 with ``validate_only``."""
    ids: tuple[str, ...] = field(default=(), repr=False)
    """Ids of those that matched, the first 1,000."""
    ids_truncated: bool = False
    """Whether there are more."""
    position: str = field(default="", repr=False)
    """Of the log: a query with it as ``min_position`` sees the change."""

    @classmethod
    def of(cls, answer: pb.ForgetResponse) -> Self:
        """From an answer."""
        return cls(
            answer.matched,
            answer.changed,
            tuple(answer.ids),
            answer.ids_truncated,
            answer.position,
        )

    def __str__(self) -> str:
        return f"matched {self.matched}, changed {self.changed}"
