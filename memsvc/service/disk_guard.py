"""Whether the disk of the data directory would take a change."""

from __future__ import annotations

from memsvc.domain.errors import Unavailable


def guard_disk(*, stalled: bool, displaced: bool) -> None:
    """Raises Unavailable while the disk does not answer (``stalled``), or the data directory is no
    longer there (``displaced``): a change would wait without end, or be lost."""
    if stalled:
        raise Unavailable(
            "the disk of the data directory does not answer; nothing was applied",
            reason="DISK_STALLED",
            hint="reads go on from memory; changes are taken again once the disk answers",
            retry_after_ms=1_000,
        )
    if displaced:
        raise Unavailable(
            "the data directory is no longer there",
            reason="DATA_DIR_GONE",
            hint="it was moved or deleted under the running node: put it back, or start anew",
            retry_after_ms=5_000,
        )
