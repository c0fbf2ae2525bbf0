"""What counts as a recall, and what cannot be combined with a ranking or a BROWSE."""

from __future__ import annotations

from typing import Any

import pytest

from memsvc.domain.errors import Code
from tests.semantics.harness import World, error_of, vector


def test_an_explained_ranking_counts_no_recall(world: World) -> None:
    world.put(summary="tea", vector=vector(1))
    world.query(text="tea", rank={}, include={"explain": True})
    assert world.node.recalls.batches() == []
    world.query(text="tea", rank={})
    assert len(world.node.recalls.batches()) == 1


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"rank": {}}, "rank"),
        ({"mode": "BROWSE", "vector": vector(1)}, "vector"),
    ],
)
def test_what_would_be_ignored_is_refused(world: World, fields: dict[str, Any], field: str) -> None:
    kept = world.put()
    more = {"ids": [kept]} if field == "rank" else {}
    error = error_of(lambda: world.query(**more, **fields))
    assert error.code is Code.INVALID_ARGUMENT
    assert [v.field for v in error.violations] == [field]
