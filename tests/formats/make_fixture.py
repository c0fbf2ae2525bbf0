"""Writes a small store in the current on-disk format, to be kept for ever as a fixture.

    python -m tests.formats.make_fixture tests/formats/store-0.1.tar.gz

Run it once for a release that changes a format; never replace a fixture of an older one.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np

from memsvc.embedded import open as open_store
from memsvc.service.admin import AdminService

DIMENSION = 8
NAMESPACE = ["acme", "helper", "s1"]


def vector(number: int) -> list[float]:
    """A vector that a test can make again."""
    return np.random.default_rng(number).standard_normal(DIMENSION).astype(float).tolist()


def fill(data_dir: Path) -> None:
    """Memories in a segment and in the tail, an update, a touch, a forgotten one, a
    memory without vector, a remembered request."""
    settings = {"storage.seal_rows": 1_000_000, "query.min_score": -1.0}
    with open_store(data_dir, dimension=DIMENSION, settings=settings) as memory:

        def write(first: int, last: int) -> None:
            memory.write(
                NAMESPACE,
                [
                    {
                        "dedup_key": f"k{n}",
                        "content": f"content {n} 内容",
                        "summary": f"summary number{n} 摘要",
                        "vector": vector(n),
                        "metadata": {
                            "seq": n,
                            "role": "user",
                            "ts": 1_700_000_000_000 + n,
                            "importance": 0.5,
                            "topic": f"t{n % 3}",
                            "attributes": {"city": "Bern", "n": n, "tags": ["a", "b"]},
                        },
                        "ttl_ms": 0,
                    }
                    for n in range(first, last)
                ],
            )

        write(0, 40)
        AdminService(memory.node).maintain(1, True, False, 60)
        write(40, 50)
        memory.write(NAMESPACE, [{"summary": "no vector yet", "dedup_key": "late", "ttl_ms": 0}])
        ids = {
            h["metadata"].get("seq"): h["id"]
            for h in memory.query(NAMESPACE, mode="BROWSE", top_k=100)["items"]
        }
        memory.write(
            NAMESPACE,
            [
                {"update": {"id": ids[3], "summary": "summary was changed"}},
                {"touch": {"id": ids[4], "importance": 0.9, "kind": "USED"}},
            ],
            request_id="request-1",
        )
        memory.forget(NAMESPACE, ids=[ids[5]], mode="HARD")


def main() -> None:
    """Makes the archive named by the first argument."""
    with tempfile.TemporaryDirectory() as folder:
        data_dir = Path(folder) / "store"
        fill(data_dir)
        for name in ("reserve", "LOCK", "store/lock.mdb"):
            (data_dir / name).unlink(missing_ok=True)
        with tarfile.open(sys.argv[1], "w:gz") as archive:
            for path in sorted(p for p in data_dir.rglob("*") if p.is_file()):
                member = archive.gettarinfo(path, arcname=str(path.relative_to(data_dir)))
                member.uid = member.gid = 0
                member.uname = member.gname = ""
                with path.open("rb") as stream:
                    archive.addfile(member, stream)


if __name__ == "__main__":
    main()
