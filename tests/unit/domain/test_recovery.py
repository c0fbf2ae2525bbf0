"""Something bad that is trusted too soon, or never again."""

from __future__ import annotations

from memsvc.domain.recovery import GOOD_CHECKS, Recovery


def test_it_goes_out_at_one_bad_check_and_comes_back_after_ten_good_ones() -> None:
    recovery = Recovery()
    assert recovery.check(True)
    assert not recovery.check(False)
    assert [recovery.check(True) for _ in range(GOOD_CHECKS)] == [False] * 9 + [True]
    assert recovery.check(True)


def test_a_bad_check_among_good_ones_begins_the_count_anew() -> None:
    recovery = Recovery()
    recovery.check(True)
    recovery.check(False)
    for _ in range(3):
        assert not any(recovery.check(True) for _ in range(GOOD_CHECKS - 1))
        assert not recovery.check(False)
    assert [recovery.check(True) for _ in range(GOOD_CHECKS)][-1]


def test_what_was_never_in_needs_one_good_check() -> None:
    recovery = Recovery()
    assert not recovery.fit
    for _ in range(3):
        assert not recovery.check(False)
    assert recovery.check(True)
