"""What `memsvc size` says, beside stores that were really written."""

from __future__ import annotations

from collections.abc import Callable

import lmdb
import numpy as np
import psutil
import pytest

from memsvc.domain import sizing
from memsvc.v1 import memory_service_pb2 as pb
from memsvc.v1 import types_pb2 as types
from tests.scenarios import harness as h

ROWS = 4_400
BATCH = 100
CONTENT, SUMMARY, METADATA = 700, 150, 110
WITHIN = 0.1
"""Share by which a figure may be off, for a store of so few rows."""
WORDS_WITHIN = 0.35
"""For the words, which depend on the language."""


def _texts() -> Callable[[int], str]:
    """Words of three to nine letters, some of them far more often than others, as in speech."""
    rng = np.random.default_rng(5)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = ["".join(rng.choice(letters, rng.integers(3, 10))) for _ in range(30_000)]
    weight = 1 / np.arange(1, len(words) + 1)
    drawn = iter(rng.choice(len(words), 1_200_000, p=weight / weight.sum()))

    def text(size: int) -> str:
        found = ""
        while len(found) < size:
            found += words[next(drawn)] + " "
        return found[:size]

    return text


def _fill(node: h.Node, dimension: int) -> None:
    text = _texts()
    for start in range(0, ROWS, BATCH):
        session = f"chat-{start // 500}"
        items = [
            pb.WriteItem(
                memory=pb.Memory(
                    dedup_key=f"{session}:{number}:0123456789abcdef",
                    content=text(CONTENT),
                    summary=text(SUMMARY),
                    vector=h.wire(h.vector(number, dimension)),
                    metadata=types.Metadata(
                        seq=number, role="user", ts=1_796_040_000_000 + number,
                        importance=0.5, source="chat", topic=f"topic {number % 20}",
                    ),
                )
            )
            for number in range(start, start + BATCH)
        ]  # fmt: skip
        h.write(node, items, namespace=h.namespace(session=session), request_id=f"r{start}")


def _tables(node: h.Node) -> dict[str, int]:
    """Bytes of each table of the database."""
    env = lmdb.open(
        str(node.data_dir / "store"), max_dbs=64, readonly=True, lock=False, map_size=1 << 40
    )
    found = {}
    with env.begin() as txn:
        names = [bytes(name) for name, _ in txn.cursor()]
    for name in names:
        table = env.open_db(name, create=False)
        with env.begin() as txn:
            stat = txn.stat(table)
        pages = stat["leaf_pages"] + stat["branch_pages"] + stat["overflow_pages"]
        found[name.decode()] = pages * stat["psize"]
    env.close()
    return found


@pytest.mark.parametrize("dimension", [256, 1536])
def test_sizes_said_are_those_of_a_store(make_node: Callable[..., h.Node], dimension: int) -> None:
    node = make_node("node", index__dimension=dimension)
    node.start()
    empty = psutil.Process(node.pid).memory_full_info().uss
    _fill(node, dimension)
    node.maintain(seal_min_rows=1, merge_all=True)
    assert node.stop() == 0
    load = sizing.Load(
        ROWS, dimension, 1, purge_hours=0, content=CONTENT, summary=SUMMARY,
        metadata=METADATA, seal_rows=1_000,
    )  # fmt: skip
    said = sizing.row(load)
    assert load.memories == ROWS
    tables = _tables(node)
    files = {path.name.split(".")[0].split("-")[0]: path for path in node.segment_files()}
    keyed = ("states", "ids", "audit", "dedup", "expiry")
    found = {
        "texts": tables["texts"],
        "vectors": tables["vectors"],
        "keys": sum(tables[name] for name in keyed),
        "log": tables["log"],
        "requests": tables["requests"],
        "rows": files["rows"].stat().st_size,
        "copies": files["scan"].stat().st_size,
        "graph": files["graph"].stat().st_size,
        "words": files["postings"].stat().st_size,
        "columns": files["columns"].stat().st_size,
    }
    each = {name: size / ROWS for name, size in found.items()}
    for name, size in each.items():
        within = WORDS_WITHIN if name == "words" else WITHIN
        h.tell(f"{dimension}: {name:9} {size:8.1f} found, {getattr(said, name):8.1f} said")
        assert getattr(said, name) == pytest.approx(size, rel=within), name
    whole = sum(each.values())
    assert said.database + said.requests + said.rows + said.copies + said.graph + said.words + (
        said.columns
    ) == pytest.approx(whole, rel=0.05)
    h.tell(f"{dimension}: server of {empty >> 20} MiB")
    assert empty < sizing.SERVER
