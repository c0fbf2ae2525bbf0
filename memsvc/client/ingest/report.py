"""What became of what was given."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class IngestReport:
    """Numbers of chunks since the ingestor was opened, replayed ones included."""

    written: int = 0
    """New memories."""
    grown: int = 0
    """Memories to which turns were added."""
    touched: int = 0
    """Said the same as a memory there is (or another chunk of the batch): its time and
    importance were raised."""
    existing: int = 0
    """Were there already, under the same key."""
    dropped: int = 0
    """Let go because too many were waiting."""
    sampled_out: int = 0
    """Let go because the service had too much to do."""
    refused: int = 0
    """The service does not take them as they are."""
    without_vector: int = 0
    """Of those written or grown: found by words only, because the embedder gave no vector."""
    unchecked: int = 0
    """Of those written or grown: not compared with the memories there are, because these could not
    be searched by vector."""
    replayed: int = 0
    """Were left by an earlier process."""
    pending: int = 0
    """Not written yet; in the spill file, if there is one."""
    problem: str = ""
    """Why the last attempt to write failed; empty when it succeeded."""
    refusals: tuple[str, ...] = ()
    """Why chunks were refused, the last few."""

    def __str__(self) -> str:
        counts = [
            f"{field.name.replace('_', ' ')} {value}"
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), int) and value
        ]
        return ", ".join(counts or ["nothing"]) + (f" ({self.problem})" if self.problem else "")
