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


def test_one_is_told_in_the_singular() -> None:
    words = ["size", "--per-day", "0.1", "--dim", "8", "--ttl", "1d", "--snapshots", "1"]
    shown = CliRunner().invoke(cli, words).stdout
    assert shown.startswith("1 memory at a time, ") and "\n1 snapshot, best on" in shown


@pytest.mark.parametrize(
    ("option", "most"),
    [("content", 65_536), ("summary", 8_192), ("metadata", 65_536), ("snapshots", 10_000)],
)
def test_no_more_than_a_memory_can_have_is_calculated(option: str, most: int) -> None:
    words = ["size", "--per-day", "1", "--dim", "8", "--ttl", "1d", f"--{option}"]
    assert CliRunner().invoke(cli, [*words, str(most)]).exit_code == 0
    refused = CliRunner().invoke(cli, [*words, str(most + 1)])
    assert refused.exit_code == 2 and f"{option} is " in refused.output


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(
    "words",
    [
        ("size", "--dim", "8", "--ttl", "1d", "--per-day"),
        ("calibrate", "-", "--keep"),
        ("mcp", "-n", "a/b", "--min-score"),
        ("mcp", "-n", "a/b", "--timeout"),
        ("query", "x", "-n", "a/b", "--min-score"),
        ("write", "x", "-n", "a/b", "--importance"),
        ("forget", "x", "-n", "a/b", "--factor"),
    ],
)
def test_what_is_no_number_is_within_no_bounds(words: tuple[str, ...], number: str) -> None:
    """ "nan" is neither below nor above a bound, and went through."""
    refused = CliRunner().invoke(cli, [*words, number])
    assert refused.exit_code == 2 and f"Invalid value for '{words[-1]}'" in refused.output
