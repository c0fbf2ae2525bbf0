"""Goes over to another embedding model and ends by kill -9 at a named step. Run as a program:
DIRECTORY STEP."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import memsvc
from memsvc.domain.log import Entry
from memsvc.domain.types import Caller
from memsvc.service import dropped_files, generation_admin, generations
from memsvc.service.dropped_files import DroppedFiles
from memsvc.store.write_txn import WriteTxn
from tests.scenarios.rebuild_killed import after, before, die

OLD, NEW = 4, 6
"""Numbers of the two models."""
MAKE_DEFAULT = ("default checked", "default appended", "default committed")
DROP = (
    "drop checked",
    "drop appended",
    "drop committed",
    "vectors purged",
    "files taken out",
    "files to be removed",
    "file removed",
)
SETTINGS = {"storage.seal_rows": 100_000, "index.embedding": "new"}


def arm(step: str) -> None:
    """Makes the process end at a step."""
    what = step.rsplit(maxsplit=1)[-1]
    if what == "checked":
        before(generations, step.split(maxsplit=1)[0].replace("default", "make_default"))
    elif what == "appended":
        after(WriteTxn, "append")  # the transaction is still open
    elif what == "committed":
        before(generations.Generations, "refresh")  # the first thing after it
    elif step == "vectors purged":
        generations.PURGE_BATCH = 7  # type: ignore[misc]  # so that some are left
        append = WriteTxn.append
        seen: list[Entry] = []

        def append_some(txn: WriteTxn, entry: Entry) -> int:
            if entry.purged is not None:
                seen.append(entry)
                if len(seen) == 4:
                    die()
            return append(txn, entry)

        WriteTxn.append = append_some  # type: ignore[method-assign]
    elif step == "files taken out":
        after(DroppedFiles, "_strip")
    elif step == "files to be removed":
        before(DroppedFiles, "_remove_unnamed")
    else:
        after(dropped_files.Path, "unlink")


def main(folder: str, step: str) -> None:
    """Does it; does not return."""
    dropping = step not in MAKE_DEFAULT
    with memsvc.open(Path(folder), dimension=NEW, settings=SETTINGS) as store:
        models: generation_admin.GenerationAdmin = store.node.generation_admin
        arm(step)
        if dropping:
            models.drop(Caller(), "old", "old", False)
        else:
            models.make_default(Caller(), "new", 0.99, False, False)
        time.sleep(30)
    raise AssertionError(f"it did not come to {step}")


if __name__ == "__main__":
    main(*sys.argv[1:])
