"""Why nobody answers is told, and not left to guessing; against real listeners."""

from __future__ import annotations

from pathlib import Path

import pytest

from memsvc.cli import reaching
from memsvc.service.listening import TlsFiles
from tests.certificates import make_authority, make_pair
from tests.edges.harness import make_edge, rpc_server
from tests.ports import free_port
from tests.unit.cli.support import Commands


def hint(memsvc: Commands, port: int, *options: object, host: str = "localhost") -> str:
    """What the command line advises of a service there; "" when it answers."""
    words = [str(option) for option in options]
    result = memsvc.run("health", "--address", f"{host}:{port}", *words)
    assert result.exit_code in (0, 3), result.output
    return result.stderr.partition("hint: ")[2].strip()


def test_what_tls_is_refused_for_is_told(memsvc: Commands, tmp_path: Path) -> None:
    authority = make_authority(tmp_path)
    ca = ("--ca-file", authority.ca.cert)
    with rpc_server(make_edge(), tls=authority.files(mutual=False)) as server:
        assert hint(memsvc, server.port, *ca) == ""
        assert hint(memsvc, server.port) == reaching.NEEDS_TLS
        assert hint(memsvc, server.port, "--tls") == reaching.OTHER_AUTHORITY
        other = ("--ca-file", authority.stranger.cert)
        assert hint(memsvc, server.port, *other) == reaching.OTHER_AUTHORITY
        named = (*ca, "--server-name", "other.example")
        assert hint(memsvc, server.port, *named) == reaching.OTHER_NAME
    with rpc_server(make_edge(), tls=authority.files(mutual=True)) as server:
        assert hint(memsvc, server.port, *ca) == reaching.NEEDS_CERTIFICATE
        own = ("--cert-file", authority.client.cert, "--key-file", authority.client.key)
        assert hint(memsvc, server.port, *ca, *own) == ""
        foreign = ("--cert-file", authority.stranger.cert, "--key-file", authority.stranger.key)
        assert hint(memsvc, server.port, *ca, *foreign) == reaching.NEEDS_CERTIFICATE


@pytest.mark.parametrize(("days", "told"), [(-1, reaching.EXPIRED), (1, "")])
def test_an_expired_certificate_is_told_though_a_name_has_several_addresses(
    memsvc: Commands, tmp_path: Path, days: int, told: str
) -> None:
    pair = make_pair(tmp_path, "server", days=days)
    with rpc_server(make_edge(), tls=TlsFiles(str(pair.cert), str(pair.key))) as server:
        assert hint(memsvc, server.port, "--ca-file", pair.cert) == told


def test_a_port_without_tls_and_one_where_nobody_is(memsvc: Commands, tmp_path: Path) -> None:
    ca = make_authority(tmp_path).ca.cert
    with rpc_server(make_edge()) as server:
        assert hint(memsvc, server.port, "--ca-file", ca) == reaching.NO_TLS
    assert "memsvc serve" in hint(memsvc, free_port())
    assert "memsvc serve" in hint(memsvc, 1, host="[::1]")


@pytest.mark.parametrize("address", ["", "nowhere", "a:b", "unknown.invalid:1", ":0"])
def test_addresses_that_are_none_are_passed_over(address: str) -> None:
    assert reaching.why_unreachable(address, None) == ""
