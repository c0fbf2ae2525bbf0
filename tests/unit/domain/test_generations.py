"""Embedding models side by side: what is refused, which is meant, how far one is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memsvc.domain.errors import FailedPrecondition, InvalidArgument
from memsvc.domain.generations import (
    MAX_SERVING,
    Coverage,
    NewGeneration,
    added,
    check_coverage,
    check_droppable,
    configured,
    eta_ms,
    named,
    told,
)
from memsvc.domain.log import Generation
from memsvc.domain.manifest import GraphSettings

OLD = Generation(1, "old", 8, True)
NEW = Generation(2, "new", 12, False)
GONE = Generation(3, "gone", 8, False, dropped=True)
UNNAMED = Generation(1, "", 8, True)


def test_the_named_one_is_meant_and_the_default_when_none_is_named() -> None:
    assert named("", [OLD, NEW]) is OLD
    assert named("new", [OLD, NEW]) is NEW
    with pytest.raises(FailedPrecondition) as unknown:
        named("gone", [OLD, NEW])
    assert unknown.value.metadata == {"known": "old,new"}
    assert told([UNNAMED, NEW]) == "(unnamed) (8 numbers, default), new (12 numbers)"


def test_a_number_is_never_given_again() -> None:
    assert added([OLD, NEW, GONE], NewGeneration("next", 4))[-1].number == 4
    assert added([OLD, GONE], NewGeneration("gone", 8)) == [Generation(4, "gone", 8, False)]


def test_the_present_one_gets_the_name_that_it_lacks() -> None:
    assert added([UNNAMED], NewGeneration("new", 12, "old")) == [OLD, NEW]
    assert (
        added([OLD], NewGeneration("new", 12, "old"))
        == added([OLD], NewGeneration("new", 12))
        == [NEW]
    )
    for current, embedding in (("", "new"), ("new", "new"), ("x" * 129, "new")):
        with pytest.raises((FailedPrecondition, InvalidArgument)):
            added([UNNAMED], NewGeneration(embedding, 12, current))


def test_graphs_go_by_the_node_where_a_model_says_nothing() -> None:
    usual = GraphSettings("i8", 16, 200)
    assert OLD.graph(usual) == usual
    (own,) = added([OLD], NewGeneration("new", 12, dtype="f16", ef_construction=300))
    assert own.graph(usual) == GraphSettings("f16", 16, 300)


def test_there_are_so_many_at_most() -> None:
    many = [OLD, *(Generation(n, f"m{n}", 8, False) for n in range(2, MAX_SERVING + 1))]
    with pytest.raises(FailedPrecondition) as full:
        added(many, NewGeneration("more", 8))
    assert full.value.reason == "TOO_MANY_EMBEDDINGS"
    assert len(added([*many[:-1], GONE], NewGeneration("more", 8))) == 1


@pytest.mark.parametrize(
    ("coverage", "share", "lacking"),
    [
        (Coverage(), 1.0, 0),
        (Coverage(10, 0, 0, 0), 1.0, 10),
        (Coverage(10, 5, 8, 4), 0.5, 5),
        (Coverage(10, 10, 8, 8), 1.0, 0),
    ],
)
def test_coverage_is_of_what_the_default_finds(
    coverage: Coverage, share: float, lacking: int
) -> None:
    assert (coverage.share, coverage.lacking) == (share, lacking)
    assert coverage.plus(1, 1, 1, 1).memories == coverage.memories + 1
    check_coverage(NEW, coverage, share)
    if share < 1:
        with pytest.raises(FailedPrecondition):
            check_coverage(NEW, coverage, share + 1e-9)


@pytest.mark.parametrize(
    ("samples", "lacking", "wanted"),
    [
        ([], 5, 0),
        ([(0, 10)], 5, 0),
        ([(0, 10), (1_000, 20)], 0, 0),
        ([(0, 10), (1_000, 10)], 5, 0),
        ([(0, 10), (1_000, 5)], 5, 0),
        ([(0, 10), (1_000, 20)], 5, 500),
        ([(0, 10), (500, 11), (1_000, 20)], 100, 10_000),
    ],
)
def test_the_time_left_goes_by_the_speed_so_far(
    samples: list[tuple[int, int]], lacking: int, wanted: int
) -> None:
    assert eta_ms(samples, lacking) == wanted


def test_only_the_default_cannot_be_dropped() -> None:
    check_droppable(NEW, [OLD, NEW])
    with pytest.raises(FailedPrecondition) as refused:
        check_droppable(OLD, [OLD, NEW])
    assert refused.value.reason == "GENERATION_IS_DEFAULT"


def test_a_configuration_means_a_model_by_name_and_dimension() -> None:
    same = replace(NEW, dimension=8)
    assert configured([OLD, NEW], "", 8) is OLD
    assert configured([OLD, NEW], "", 12) is NEW
    assert configured([OLD, NEW], "new", 12) is NEW
    assert configured([OLD, NEW], "new", 8) is None
    assert configured([OLD, NEW], "", 9) is None
    # Of several that fit the default is meant.
    assert configured([replace(OLD, is_default=False), replace(same, is_default=True)], "", 8) == (
        replace(same, is_default=True)
    )
