"""How a client is set up: what cannot be is told at once, and what looks odd works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from memsvc.cli import cli
from memsvc.client import MemoryClient, RoutedClient, Timeouts
from memsvc.client.connection import MAX_TIMEOUT_S, MAX_TOKEN
from tests.unit.client.fake import FakeService, Running

CLIENTS: list[Callable[..., Any]] = [
    MemoryClient,
    lambda address, token: RoutedClient([address], token),
]


@pytest.mark.parametrize("client_of", CLIENTS)
def test_a_token_with_the_line_break_of_its_file_is_taken(client_of: Callable[..., Any]) -> None:
    """gRPC called it invalid metadata, which a router took for a node that is away."""
    running = Running(FakeService())
    longest = "x" * MAX_TOKEN
    for token in "ms_secret\n", f" {longest}\r\n":
        with client_of(running.address, token) as client:
            client.query("acme/bot", text="x")
    assert {"ms_secret", longest} <= set(running.service.tokens)
    running.stop()


@pytest.mark.parametrize("client_of", CLIENTS)
@pytest.mark.parametrize("token", ["ms_sécret", "ms_sec\nret", "ms_sec\0ret", "x" * 4_097])
def test_a_token_that_cannot_be_sent_is_refused_and_not_shown(
    client_of: Callable[..., Any], token: str
) -> None:
    with pytest.raises(ValueError, match=r"^token: expected") as caught:
        client_of("127.0.0.1:1", token)
    assert "ms_s" not in str(caught.value) and "xx" not in str(caught.value)


@pytest.mark.parametrize("address", ["", "\ud800:1", "a\nb:1"])
def test_an_address_that_cannot_be_one_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="address: expected HOST:PORT"):
        MemoryClient(address)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), MAX_TIMEOUT_S + 1])
@pytest.mark.parametrize("name", ["connect", "read", "write", "admin"])
def test_a_time_limit_that_is_over_at_once_is_refused(name: str, seconds: float) -> None:
    """Beyond what gRPC can count, a call ends before it begins."""
    with pytest.raises(ValueError, match=f"{name}: expected seconds above 0"):
        Timeouts(**{name: seconds})


def test_the_longest_time_limit_is_one() -> None:
    running = Running(FakeService())
    timeouts = Timeouts(MAX_TIMEOUT_S, MAX_TIMEOUT_S, MAX_TIMEOUT_S, MAX_TIMEOUT_S)
    with MemoryClient(running.address, timeouts=timeouts) as client:
        client.query("acme/bot", text="x")
    running.stop()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--token", "sécret"), "token: expected printable ASCII"),
        (("--address", ""), "--address: expected HOST:PORT"),
        (("--timeout", "1e300"), "Invalid value for '--timeout'"),
    ],
)
def test_a_command_says_what_is_wrong_with_its_connection(
    words: tuple[str, ...], told: str
) -> None:
    refused = CliRunner().invoke(cli, ["health", *words])
    assert refused.exit_code == 2 and told in refused.output and "sécret" not in refused.output
