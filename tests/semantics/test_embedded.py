"""memsvc.open: the store inside a program."""

from __future__ import annotations

from pathlib import Path

import pytest

import memsvc
from memsvc.domain.errors import FailedPrecondition


def test_use_after_close_is_told_and_opening_again_finds_everything(tmp_path: Path) -> None:
    namespace = ["acme", "assistant", "chat-1"]
    memory = memsvc.open(tmp_path, dimension=2)
    memory.write(namespace, [{"content": "likes tea"}])
    memory.close()
    for call in (lambda: memory.query(namespace, text="tea"), memory.health):
        with pytest.raises(FailedPrecondition, match="closed"):
            call()
    with memsvc.open(tmp_path, dimension=2) as again:
        assert again.query(namespace, text="tea")["items"]
