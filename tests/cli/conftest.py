from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

from memsvc.client import LocalEmbedder


@functools.cache
def _embedder() -> LocalEmbedder:
    return LocalEmbedder()


@pytest.fixture(autouse=True, scope="session")
def one_model() -> Iterator[None]:
    """The model is loaded once for all commands that run in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("memsvc.cli.embedding.LocalEmbedder", _embedder)
        yield
