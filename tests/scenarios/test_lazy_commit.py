"""storage.wal_sync = every_1000ms: what may wait for its commit, and what may not."""

from __future__ import annotations

from collections.abc import Callable

from tests.scenarios import harness as h
from tests.waiting import until

MakeNode = Callable[..., h.Node]


def test_a_new_store_starts_when_commits_are_lazy(make_node: MakeNode) -> None:
    """The first entry makes the embedding generation, which is read back at once."""
    node = make_node(storage__wal_sync="every_1000ms").start()
    ids = h.fill(node, range(10))
    until(lambda: set(h.browse(node)) == set(ids), 10, "the commit of the second")


def test_files_are_removed_after_the_manifest_is_on_disk(make_node: MakeNode) -> None:
    """A crash between the two would leave a manifest that names files which are gone."""
    node = make_node(storage__wal_sync="every_1000ms", storage__seal_rows=100_000).start()
    h.fill(node, range(300))
    for _ in range(3):
        until(lambda: len(h.browse(node)) >= 300, 10, "the commit of the second")
        node.maintain(seal_min_rows=1)
        h.fill(node, range(1_000, 1_050))
        node.maintain(seal_min_rows=1, merge_all=True)
        node.kill()
        node.start()
        assert node.inspect(verify=True)["damaged_found"] == 0


def test_a_stop_flushes_what_was_acknowledged(make_node: MakeNode) -> None:
    node = make_node(storage__wal_sync="every_1000ms").start()
    ids = h.fill(node, range(50))
    assert node.stop() == 0
    node.start()
    assert set(ids) == set(h.browse(node))
