"""A primary and its replicas that can take each other's place, for scenario tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc

from memsvc.admin.v1 import admin_service_pb2 as admin_pb
from memsvc.v1 import memory_service_pb2 as pb
from tests.ports import free_port
from tests.scenarios import harness as h
from tests.scenarios import replication as r
from tests.scenarios.network import Switch
from tests.waiting import until


def make_group(
    make_node: r.MakeNode,
    names: Sequence[str] = ("a", "b", "c"),
    switch: Switch | None = None,
    **settings: Any,
) -> list[h.Node]:
    """Nodes of one group, not started; the first is to be primary."""
    places = [(switch.plug(name) if switch else ("127.0.0.1", "127.0.0.1")) for name in names]
    listens = [f"{inside}:{free_port()}" for inside, _ in places]
    nodes = []
    for name, listen, (_, outside) in zip(names, listens, places, strict=True):
        node = make_node(name)
        node.host = outside
        if switch:
            node.network = switch.space(name)
            token = node.folder / "token"
            token.write_text("between us\n")
            node.configure(
                server__listen=f"{outside}:{node.port}",
                server__http_listen="",
                server__allow_insecure=True,
                replication__token_file=str(token),
            )
        node.configure(
            node__role="primary" if name == names[0] else "replica",
            replication__listen=listen,
            replication__nodes=listens,
            replication__primary="" if name == names[0] else listens[0],
            replication__advertise=f"{outside}:{node.port}",
            **settings,
        )
        nodes.append(node)
    return nodes


def start(nodes: Sequence[h.Node]) -> None:
    """Starts the primary, then the others together, and waits until they are level."""
    nodes[0].start()
    for node in nodes[1:]:
        node.start(wait=False)
    for node in nodes[1:]:
        node.wait_ready()
    r.level(nodes[0], *nodes[1:])


def promote(node: h.Node, **how: Any) -> admin_pb.PromoteResponse:
    """Makes a node primary."""
    return node.admin().Promote(admin_pb.PromoteRequest(**how), timeout=60)


def refusal(node: h.Node, **how: Any) -> str:
    """The reason why it is not made primary."""
    try:
        promote(node, **how)
    except grpc.RpcError as error:
        return r.reason_of(error)[1]
    raise AssertionError("it was promoted")


def role(node: h.Node) -> pb.Role.ValueType:
    """What a node says it is."""
    return r.health(node).role


def await_role(node: h.Node, wanted: pb.Role.ValueType, seconds: float = 60.0) -> None:
    """Waits until a node is what it should be."""

    def is_it() -> bool:
        try:
            return role(node) == wanted
        except grpc.RpcError:
            node.disconnect()
            return False

    until(is_it, seconds, f"{node.folder.name} to be {pb.Role.Name(wanted)}")


def write_somewhere(nodes: Sequence[h.Node], number: int, seconds: float = 60.0) -> h.Node:
    """Writes a memory to whichever node takes it, as a patient client does; that node."""
    taken: list[h.Node] = []

    def tried() -> bool:
        for node in nodes:
            try:
                h.write(node, [h.memory(number)], request_id=f"write-{number}")
            except grpc.RpcError as error:
                if not r.reason_of(error)[1]:
                    node.disconnect()  # it was not reached
                continue
            taken.append(node)
            return True
        return False

    until(tried, seconds, f"somebody to take write {number}")
    return taken[0]
