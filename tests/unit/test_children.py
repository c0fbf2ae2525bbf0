"""What a server starts is what was installed, whatever lies in its working directory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from memsvc.children import described
from memsvc.store.store import Store


@pytest.mark.parametrize(
    ("code", "told"), [(0, "exit code 0"), (-9, "signal SIGKILL"), (-200, "signal 200")]
)
def test_how_a_process_ended_is_told_by_names(code: int, told: str) -> None:
    assert described(code) == told


_START = """
import subprocess, sys
from memsvc import children
sys.exit(subprocess.run(children.command(*sys.argv[1:]), stdin=subprocess.DEVNULL).returncode)
"""


@pytest.mark.parametrize("module", ["memsvc.readers.process", "memsvc.service.builder_process"])
def test_a_file_in_the_working_directory_is_not_taken_for_a_module_of_the_library(
    module: str, tmp_path: Path
) -> None:
    """`memsvc serve` in a folder with a queue.py: the server ran, its readers and builders
    ended at once, again and again."""
    Store(tmp_path / "data").close()
    (tmp_path / "queue.py").write_text("raise SystemExit('not this one')\n")
    words = [sys.executable, "-P", "-c", _START, module, str(tmp_path / "data")]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
