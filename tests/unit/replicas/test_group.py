"""The part a node plays in its group, where something breaks in the middle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from memsvc.config import Settings
from memsvc.domain.errors import MemsvcError
from memsvc.service.node import Node
from memsvc.store.writer import disk_full
from replicas.group import Group
from tests.ports import free_port
from tests.waiting import until


def settings_of(role: str, data_dir: Path, primary: str = "") -> Settings:
    return Settings.model_validate(
        {
            "node": {"role": role},
            "index": {"dimension": 8},
            "storage": {"data_dir": data_dir, "reserve_bytes": 0},
            "replication": {"listen": "127.0.0.1:1", "primary": primary},
        }
    )


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Group]:
    """A replica whose primary nobody reaches."""
    data_dir = tmp_path / "data"
    Node(settings_of("primary", data_dir), upkeep=False).stop()
    settings = settings_of("replica", data_dir, f"127.0.0.1:{free_port()}")
    node = Node(settings, upkeep=False, follows=True)
    group = Group(node, settings, on_restart=lambda _reason: None)
    group.start()
    yield group
    group.stop()
    node.stop()


def test_a_promotion_that_a_full_disk_broke_off_is_finished_once_there_is_room(
    replica: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = replica.node
    with monkeypatch.context() as patched:

        def full(_epoch: int) -> None:
            raise disk_full()

        patched.setattr(node.leading, "lead", full)
        with pytest.raises(MemsvcError, match="no room"):
            replica.take_over(2)
        # It has said in ROLE that it leads, and cannot yet.
        assert replica.role.leads
        assert node.leading.follows
    until(lambda: not node.leading.follows, 30, "the epoch to begin")
    assert node.standing().epoch == 2
