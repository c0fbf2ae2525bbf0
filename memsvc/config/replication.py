"""Settings of a node among others: its role, and how the nodes of one store reach each other."""

from typing import Annotated, Literal

from pydantic import AfterValidator

from memsvc.config.fields import Section, key, parse_listen
from memsvc.config.server import ListenOrOff

MAX_NODES = 17
"""A primary and as many followers as it serves."""


def _check_nodes(nodes: tuple[str, ...]) -> tuple[str, ...]:
    if len(nodes) > MAX_NODES:
        raise ValueError(f"at most {MAX_NODES} nodes")
    if len(set(nodes)) != len(nodes):
        raise ValueError("a node is listed twice")
    for node in nodes:
        parse_listen(node)
    return nodes


class Node(Section):
    """The part this node plays."""

    role: Literal["standalone", "primary", "replica"] = key(
        "standalone",
        "standalone: serves alone. primary: also streams its log to replicas, on "
        "replication.listen. replica: copies the log of replication.primary and answers reads; "
        "Write and Forget are refused with the primary's address. In a group "
        "(replication.nodes) this is how the node begins: `memsvc promote` changes it, and the "
        "file ROLE in the data directory remembers.",
        reload=False,
    )
    check_interval_ms: int = key(
        1_000,
        "Time between two checks of the node by itself, which set its level of degradation. It "
        "recovers after ten good ones in a row.",
        reload=True,
        unit="milliseconds",
        ge=10,
        le=60_000,
    )


class Replication(Section):
    """Between the nodes of one store."""

    listen: ListenOrOff = key(
        "",
        "Address where a primary serves its replicas, and where a replica does once it is "
        "promoted. One that other machines can reach needs token_file, or server.tls with "
        "client_ca_file. With server.tls connections are encrypted. Needed for node.role primary "
        "and in a group.",
        reload=False,
        expects="host:port, or empty",
    )
    primary: str = key(
        "",
        "replication.listen of the primary, for a replica. Needed for node.role replica.",
        reload=False,
        expects="host:port, or empty",
    )
    nodes: Annotated[tuple[str, ...], AfterValidator(_check_nodes)] = key(
        (),
        "The group: replication.listen of every node of this store as the others reach it, this "
        "one included, the same list on each. Needed to promote a replica. Nodes of a "
        "group find their primary by themselves after a promotion.",
        reload=False,
        expects="a list of at most 17 host:port",
        strict=False,
    )
    min_acks: int = key(
        0,
        "Replicas of the group that must have a write on their disks before it is answered, so "
        "that it outlives the primary. Then a primary that hears of fewer replicas "
        "takes no changes. Needs storage.wal_sync always. 0: writes do not wait for replicas.",
        reload=False,
        unit="replicas",
        ge=0,
        le=15,
    )
    ack_timeout_ms: int = key(
        2_000,
        "Longest wait for these replicas, within the deadline of the call. A write that they "
        "did not confirm in time is answered with UNAVAILABLE and stays stored here.",
        reload=False,
        unit="ms",
        ge=10,
    )
    lease_ms: int = key(
        3_000,
        "With min_acks: when so many replicas were not heard of for this long, the primary "
        "refuses changes and marks its answers as stale, since another may be primary by now.",
        reload=False,
        unit="ms",
        ge=500,
    )
    advertise: str = key(
        "",
        "Where clients reach the gRPC service of this primary; its replicas tell it to callers "
        "whose Write or Forget they refuse. Empty: server.listen.",
        reload=False,
        expects="host:port, or empty",
    )
    max_lag_ms: int = key(
        10_000,
        "Lag behind the primary past which a replica says NOT_SERVING for reads "
        "(memsvc.v1.MemoryService in the standard health service), so that clients that balance "
        "by it leave it; ten good checks in a row, one a second, bring it back. It still answers, "
        "at level 2 of degradation, and marks its answers. A primary that is gone makes every "
        "replica lag. 0: no limit.",
        reload=True,
        unit="milliseconds",
        ge=0,
        le=86_400_000,
    )
    copy_mib_per_s: int = key(
        300,
        "Most that a primary sends to one new replica while it copies a snapshot, so that its "
        "readers do not feel it. 0: no limit.",
        reload=False,
        unit="MiB/s",
        ge=0,
    )
    token_file: str = key(
        "",
        "File with a secret that a primary asks of its replicas and a replica sends. Empty: none.",
        reload=False,
        expects="a path, or empty",
    )
    ca_file: str = key(
        "",
        "Authorities that a replica trusts for the primary's certificate, PEM. When set, the "
        "replica connects with TLS, and shows the certificate of server.tls, if there is one.",
        reload=False,
        expects="a path, or empty",
    )
