"""The page of formats knows every file of a data directory."""

from __future__ import annotations

import re

from memsvc.admin.v1 import admin_service_pb2 as admin_pb
from tests.scenarios import groups as g
from tests.scenarios import harness as h
from tests.scenarios import replication as r


def test_every_file_of_a_data_directory_is_explained(make_node: r.MakeNode) -> None:
    page = (h.REPOSITORY / "docs/reference/formats.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"`([\w.-]+)[`/]", page))
    primary, replica = nodes = g.make_group(make_node, ("a", "b"), storage__reserve_bytes=65_536)
    g.start(nodes)
    h.fill(primary, range(200))
    primary.maintain(seal_min_rows=1, purge=True)
    primary.admin().SetDegraded(admin_pb.SetDegradedRequest(level=2), timeout=10)
    primary.admin().TakeSnapshot(admin_pb.TakeSnapshotRequest(), timeout=60)
    r.level(primary, replica)
    found = {path.name for node in nodes for path in node.data_dir.iterdir()}
    g.promote(replica)
    found |= {path.name for node in nodes for path in node.data_dir.iterdir()}
    assert {"LOCK", "ROLE", "REPLICA", "forced-level.json", "snapshots", "reserve"} <= found
    assert found <= explained
    parts = {path.name for path in primary.segment_files() if "snapshots" not in path.parts}
    assert parts and {re.sub(r"-\d+\.", "-G.", name) for name in parts} <= explained
