"""What a follower does next: pure state, told of what happens, without a network or a clock."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from memsvc.domain.replication import Verdict

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0


class Step(Enum):
    """What to do."""

    PROBE = "ask the primary where this log stands to its own"
    FOLLOW = "take its entries"
    PAUSE = "wait, then probe"
    RESTORE = "begin anew from the primary"
    HALT = "do nothing: a person is needed"


@dataclass(slots=True)
class Course:
    """The step to take. ``reason`` says why, for people; ``pause_s`` how long a PAUSE is
    (before jitter)."""

    step: Step = Step.PROBE
    reason: str = ""
    pause_s: float = 0.0

    def probed(self, verdict: Verdict, reason: str) -> None:
        """The primary has answered."""
        self.reason = reason
        if verdict is Verdict.FOLLOW:
            self.step = Step.FOLLOW
        elif verdict is Verdict.FORKED:
            self.step = Step.RESTORE
        elif verdict is Verdict.TOO_OLD:
            self.step = Step.HALT
        else:
            self._wait()

    def applied(self) -> None:
        """Entries were applied: the next loss of the connection is a first one."""
        self.pause_s = 0.0

    def lost(self, reason: str) -> None:
        """The connection failed or ended."""
        self.reason = reason
        self._wait()

    def paused(self) -> None:
        """The pause is over."""
        self.step = Step.PROBE

    def differs(self, reason: str) -> None:
        """What was applied is not what the primary has: nothing here can be trusted."""
        self.step, self.reason = Step.RESTORE, reason

    def unknown(self, reason: str) -> None:
        """An entry of a later version came: it must not be skipped."""
        self.step, self.reason = Step.HALT, reason

    def _wait(self) -> None:
        self.step = Step.PAUSE
        self.pause_s = min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, 2 * self.pause_s))
