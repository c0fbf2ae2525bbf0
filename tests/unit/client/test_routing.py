"""Calls that would go to a node which cannot, must not or should not take them.

Each test is a script of events; after each step stands where reads and writes would go.
"""

from __future__ import annotations

import pytest

from memsvc.client.routing import Report, RoutingTable
from memsvc.domain.recovery import GOOD_CHECKS

A, B, C = "a:1", "b:1", "c:1"
STORE = "5e"
MAX_LAG_MS = 1_000


def primary(epoch: int = 1, **more: object) -> Report:
    return Report(primary=True, epoch=epoch, store_id=STORE, **more)  # type: ignore[arg-type]


def replica(epoch: int = 1, **more: object) -> Report:
    return Report(primary=False, epoch=epoch, store_id=STORE, **more)  # type: ignore[arg-type]


@pytest.fixture
def table() -> RoutingTable:
    """A is the primary, B and C are replicas; all are well."""
    table = RoutingTable([A, B, C], MAX_LAG_MS)
    table.checked(A, primary())
    table.checked(B, replica())
    table.checked(C, replica())
    return table


def good_checks(table: RoutingTable, address: str, count: int = GOOD_CHECKS) -> None:
    for _ in range(count):
        table.checked(address, replica())


def test_nothing_is_chosen_before_anything_is_known() -> None:
    table = RoutingTable([A, B], MAX_LAG_MS)
    assert (table.writer(), table.reader(), table.last_resort()) == ("", "", "")
    assert not table.settled
    table.checked(A, replica())
    assert (table.writer(), table.reader()) == ("", A), "B may be the primary"
    table.failed(B)
    assert table.settled


def test_without_an_address_there_is_no_table() -> None:
    with pytest.raises(ValueError, match="at least one"):
        RoutingTable([], MAX_LAG_MS)


def test_writes_go_to_the_primary_and_reads_to_replicas(table: RoutingTable) -> None:
    assert table.writer() == A
    assert table.reader() in (B, C)
    assert table.is_fallback(A)


def test_a_node_that_stands_alone_is_read_from_without_a_mark() -> None:
    table = RoutingTable([A], MAX_LAG_MS)
    table.checked(A, primary())
    assert (table.writer(), table.reader(), table.primary) == (A, "", A)
    assert not table.is_fallback(A)


# -- health of replicas --------------------------------------------------------------------


def test_reads_are_spread_over_equal_replicas(table: RoutingTable) -> None:
    seen = []
    for _ in range(6):
        address = table.reader()
        table.began(address)
        table.ended(address)
        seen.append(address)
    assert (seen.count(B), seen.count(C)) == (3, 3)


def test_reads_go_where_fewer_are_under_way(table: RoutingTable) -> None:
    for _ in range(3):
        table.began(B)
    assert [table.reader() for _ in range(3)] == [C] * 3


def test_reads_go_where_the_lag_is_smaller_unless_it_is_next_to_nothing(
    table: RoutingTable,
) -> None:
    table.checked(B, replica(lag_ms=600))
    for _ in range(10):
        table.began(C)
    assert table.reader() == C
    table.checked(B, replica(lag_ms=100))
    assert table.reader() == B


def test_a_replica_with_damaged_files_is_read_from_last(table: RoutingTable) -> None:
    table.checked(B, replica(degraded=3))
    table.began(C)
    assert table.reader() == C
    assert table.reader({C}) == B


def test_a_replica_goes_out_at_one_failed_call_and_comes_back_after_ten_good_checks(
    table: RoutingTable,
) -> None:
    table.failed(B)
    good_checks(table, B, GOOD_CHECKS - 1)
    assert table.reader({C}) == ""
    table.failed(B)
    good_checks(table, B, GOOD_CHECKS - 1)
    assert table.reader({C}) == ""
    good_checks(table, B, 1)
    assert table.reader({C}) == B


def test_checks_in_haste_bring_no_replica_back(table: RoutingTable) -> None:
    table.failed(B)
    for _ in range(3 * GOOD_CHECKS):
        table.checked(B, replica(), regular=False)
    assert table.reader({C}) == ""
    table.checked(C, replica(ready=False), regular=False)
    assert table.reader() == "", "but they do take one out"


@pytest.mark.parametrize("bad", [replica(lag_ms=MAX_LAG_MS + 1), replica(ready=False)], ids=str)
def test_a_replica_that_lags_or_is_not_ready_is_left(table: RoutingTable, bad: Report) -> None:
    table.checked(B, replica(lag_ms=MAX_LAG_MS))
    assert table.reader({C}) == B, "at the bound it is read from"
    table.checked(B, bad)
    assert table.reader({C}) == ""
    good_checks(table, B)
    assert table.reader({C}) == B


def test_a_lagging_replica_is_better_than_nobody_and_known_to_lag(table: RoutingTable) -> None:
    table.checked(B, replica(lag_ms=MAX_LAG_MS + 1))
    table.failed(C)
    table.failed(A)
    assert (table.reader(), table.primary) == ("", "")
    assert table.last_resort() == B
    assert table.lags(B)
    good_checks(table, C, 1)
    assert table.last_resort() == C
    assert not table.lags(C), "it is only not trusted yet"


# -- who is the primary --------------------------------------------------------------------


def test_a_primary_that_is_back_takes_writes_at_once(table: RoutingTable) -> None:
    table.failed(A)
    assert table.primary == ""
    table.checked(A, primary(), regular=False)
    assert table.writer() == A


def test_the_primary_with_the_highest_epoch_takes_writes(table: RoutingTable) -> None:
    table.checked(B, primary(epoch=2))
    assert table.writer() == B, "A does not know yet that it was replaced"
    assert table.reader() == C
    table.checked(A, primary())
    assert table.writer() == B


def test_a_primary_that_was_replaced_gets_nothing_while_the_new_one_is_not_reached(
    table: RoutingTable,
) -> None:
    table.checked(B, primary(epoch=2))
    table.failed(B)
    assert table.primary == ""
    table.checked(A, primary())
    assert table.primary == ""


def test_a_primary_is_known_to_be_replaced_from_a_replica_of_the_new_one(
    table: RoutingTable,
) -> None:
    """The new primary is not among the addresses."""
    table.checked(C, replica(epoch=2))
    assert table.primary == ""
    assert table.writer() == C, "it names the new one"
    table.refused(B, A)
    assert table.primary == "", "what B says is out of date"
    table.refused(C, "d:1")
    assert table.writer() == "d:1"
    table.checked("d:1", primary(epoch=2))
    assert table.writer() == "d:1"
    assert "d:1" not in {table.reader(), table.last_resort()}


def test_epochs_of_different_stores_are_not_compared(table: RoutingTable) -> None:
    """A store that was made anew begins with epoch 1."""
    table.checked(A, primary(epoch=7))
    table.checked(A, Report(primary=True, epoch=1, store_id="another"))
    assert table.writer() == A


def test_a_refusal_leads_to_the_node_that_it_names(table: RoutingTable) -> None:
    table.refused(A, B)
    assert table.writer() == B
    table.failed(B)
    assert table.primary == ""


def test_two_nodes_that_name_each_other_are_left_once_held(table: RoutingTable) -> None:
    table.refused(A, B)
    table.refused(B, A)
    assert table.writer() == A
    assert table.writer({A}) == ""


@pytest.mark.parametrize("named", ["", A, "0.0.0.0:8848", "[::]:8848", ":8848"])
def test_a_refusal_that_names_nobody_to_connect_to_is_not_followed(
    table: RoutingTable, named: str
) -> None:
    table.refused(A, named)
    assert table.primary == ""
    assert table.addresses == [A, B, C]


def test_a_learned_primary_is_forgotten_when_it_is_none_any_more(table: RoutingTable) -> None:
    table.refused(A, "d:1")
    table.checked("d:1", primary(epoch=2))
    assert "d:1" in table.addresses
    table.checked("d:1", replica(epoch=2))
    assert table.addresses == [A, B, C]
    table.refused(A, "d:1")
    table.failed("d:1")
    assert table.addresses == [A, B, C]
    table.checked("d:1", primary(epoch=3))
    table.ended("d:1")
    assert table.primary == "", "what comes late from it is not heard"


def test_with_no_primary_in_sight_any_replica_is_asked_who_it_is() -> None:
    table = RoutingTable([B, C], MAX_LAG_MS)
    table.checked(B, replica())
    table.checked(C, replica())
    first = table.writer()
    assert {first, table.writer({first})} == {B, C}
    assert table.writer({B, C}) == ""
    assert table.primary == "", "to ask is not to take it for the primary"


def test_a_promoted_replica_is_read_from_as_the_primary_it_is(table: RoutingTable) -> None:
    table.checked(B, primary(epoch=2))
    table.failed(C)
    table.failed(A)
    assert (table.reader(), table.primary) == ("", B)


def test_states_tell_what_is_known(table: RoutingTable) -> None:
    table.began(B)
    table.checked(B, replica(lag_ms=7))
    table.failed(C, "connection refused")
    a, b, c = table.states()
    assert (a.role, a.reads, a.epoch) == ("primary", False, 1)
    assert (b.role, b.reads, b.lag_ms, b.in_flight) == ("replica", True, 7, 1)
    assert (c.role, c.reads, c.trouble) == ("", False, "connection refused")
    table.checked(C, replica())
    assert table.states()[2].trouble == ""
