"""Nodes that speak to each other over TLS."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.certificates import Authority, Pair, make_authority
from tests.scenarios import harness as h
from tests.scenarios import replication as r
from tests.waiting import until

MakeNode = Callable[..., h.Node]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("tls"))


def tls(authority: Authority, own: Pair, *, mutual: bool) -> dict[str, Any]:
    """Settings of a node that has a certificate."""
    return {
        "server__tls__cert_file": str(own.cert),
        "server__tls__key_file": str(own.key),
        "server__tls__client_ca_file": str(authority.ca.cert) if mutual else "",
        "server__http_listen": "",
    }


def encrypted(node: h.Node, authority: Authority) -> h.Node:
    """Lets the test call a node that encrypts."""
    node.credentials = grpc.ssl_channel_credentials(
        authority.ca.cert.read_bytes(),
        authority.client.key.read_bytes(),
        authority.client.cert.read_bytes(),
    )
    return node


@pytest.mark.parametrize("mutual", [False, True], ids=["one side", "both sides"])
def test_a_replica_copies_and_follows_over_tls_and_no_stranger_does(
    make_node: MakeNode, authority: Authority, tmp_path: Path, mutual: bool
) -> None:
    own = tls(authority, authority.server, mutual=mutual)
    primary = encrypted(r.make_primary(make_node, **own), authority).start()
    h.fill(primary, range(50))
    trusting = {"replication__ca_file": str(authority.ca.cert)}
    replica = encrypted(r.make_replica(make_node, primary, **own, **trusting), authority).start()
    h.fill(primary, range(100, 120))
    r.level(primary, replica)
    assert r.facts(replica) == r.facts(primary)
    strangers = [r.make_replica(make_node, primary, "plain")]
    # It does not know who signed the primary's certificate.
    wrong = {"replication__ca_file": str(authority.stranger.cert)}
    strangers.append(r.make_replica(make_node, primary, "distrustful", **own, **wrong))
    if mutual:
        other = tls(authority, authority.stranger, mutual=False)
        strangers.append(r.make_replica(make_node, primary, "stranger", **other, **trusting))
        strangers.append(r.make_replica(make_node, primary, "nameless", **trusting))
    for stranger in strangers:
        stranger.start(wait=False)
    for stranger in strangers:
        until(
            lambda one=stranger: "waiting for the primary" in one.log_tail(),  # type: ignore[misc]
            120,
            f"{stranger.folder.name} to be refused",
        )
        assert not (stranger.data_dir / "store" / "data.mdb").exists()
    assert (primary.stop(), replica.stop()) == (0, 0)
    r.same_records(primary, replica)
