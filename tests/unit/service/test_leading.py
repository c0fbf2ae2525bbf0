"""What a node that follows another tells those who want to change something."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from memsvc.domain.errors import FailedPrecondition
from memsvc.service.leading import Leading, Primary


@pytest.mark.parametrize("address", ["", "10.0.0.1:8848"])
def test_a_primary_that_is_not_known_is_not_named_by_an_empty_address(address: str) -> None:
    """Clients that follow what a refusal names asked nobody."""
    store: Any = SimpleNamespace(follower=True)
    leading = Leading(store, cast(Any, None), cast(Any, SimpleNamespace(leads=True)))
    leading.primary = lambda: Primary(address)
    with pytest.raises(FailedPrecondition) as caught:
        leading.guard()
    assert caught.value.reason == "NOT_PRIMARY"
    assert caught.value.metadata == ({"primary": address} if address else {})


def test_a_change_of_role_goes_on_where_one_who_is_told_of_it_fails() -> None:
    store: Any = SimpleNamespace(follower=True)
    leading = Leading(store, cast(Any, None), cast(Any, SimpleNamespace(leads=True)))
    told: list[str] = []

    def fails() -> None:
        raise RuntimeError("no such place")

    leading.on_changed += [fails, lambda: told.append("the next")]
    leading.follow()
    assert told == ["the next"]
