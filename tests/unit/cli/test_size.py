"""`memsvc size` says what the calculation says."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from memsvc.cli import cli
from memsvc.domain.sizing import Load, size

LOAD = Load(80_000, 1536, 180)


def test_command_says_the_parts_and_their_sums() -> None:
    words = ["size", "--per-day", "80000", "--dim", "1536", "--ttl", "180d"]
    shown = CliRunner().invoke(cli, words)
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.startswith("14,480,000 memories at a time, 9,600,000 of them")
    for name in (*size(LOAD).disk, *size(LOAD).memory):
        assert f"  {name} " in shown.stdout
    said = json.loads(CliRunner().invoke(cli, [*words, "--json"]).stdout)
    assert said["disk_total"] == size(LOAD).disk_total
    assert said["memory"] == size(LOAD).memory


@pytest.mark.parametrize("ttl", ["0", "7"])
def test_command_wants_to_know_how_far_to_look_ahead(ttl: str) -> None:
    words = ["size", "--per-day", "10", "--dim", "16", "--ttl", ttl]
    assert CliRunner().invoke(cli, words).exit_code == 2
