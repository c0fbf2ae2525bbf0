"""Hundreds of requests that nobody should send, over both protocols, to a real server.

Every case states the error it must get. A failure names the seed and the number of the case;
``list(draw(seed, number + 1, facts))[-1]`` is the request.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hostile.attack import Fortress, draw
from tests.hostile.case import Facts

COUNT = 600


@pytest.fixture(scope="module")
def fortress(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fortress]:
    opened = Fortress(tmp_path_factory.mktemp("fortress"))
    try:
        yield opened.start()
    finally:
        opened.close()


@pytest.mark.parametrize("seed", [1, 2])
def test_hostile_requests_get_the_error_they_deserve_and_nothing_else(
    fortress: Fortress, seed: int
) -> None:
    tally = fortress.attack(seed, COUNT // 2)
    assert sum(tally.values()) == COUNT // 2
    assert min(tally.get("grpc OK", 0), tally.get("http OK", 0)) > 0
    fortress.check()


def test_cases_of_a_seed_are_the_same_each_time() -> None:
    facts = Facts(["a"], ["b"], ["c"], "A" * 34, "B" * 44, tokens={"own": ""})
    assert list(draw(7, 300, facts)) == list(draw(7, 300, facts))
