"""Queries have processes of their own from two cores on, and a node never takes all of a large
machine."""

from __future__ import annotations

import pytest

from memsvc.config import load
from memsvc.config.loading import ConfigError
from memsvc.service import cores


@pytest.mark.parametrize(
    ("there", "readers"), [(1, 0), (2, 1), (3, 2), (4, 3), (17, 16), (18, 16), (256, 16)]
)
def test_readers_go_by_cores(there: int, readers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cores.readers_for(there) == readers
    monkeypatch.setattr(cores, "usable_cores", lambda: there)
    assert cores.readers_of(load().settings) == readers
    assert cores.readers_of(load(overrides={"server.readers": 2}).settings) == 2
    assert cores.readers_of(load(env={"MEMSVC_SERVER__READERS": "0"}).settings) == 0
    assert cores.readers_of(load(env={"MEMSVC_SERVER__READERS": "auto"}).settings) == readers


@pytest.mark.parametrize("wrong", [-1, 65, "all", 1.5, True])
def test_other_numbers_of_readers_are_refused(wrong: object) -> None:
    with pytest.raises(ConfigError) as refused:
        load(overrides={"server.readers": wrong})
    (problem,) = refused.value.problems
    assert "server.readers" in problem and "auto, or an integer from 0 to 64" in problem
    assert cores.readers_of(load(overrides={"server.readers": 64}).settings) == 64
