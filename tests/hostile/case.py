"""One hostile request, what must come of it, and what a generator may refer to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal, TypeAlias

DIMENSION = 16
TENANT, AGENT, VICTIM = "acme", "sink", "victim"
FOREIGN = "acme-corp"
Call = Literal["Write", "Query", "Forget", "Health"]
Document: TypeAlias = dict[str, Any]
"""A request as JSON would have it; ``encode`` makes a message or a body of it."""


@dataclass(frozen=True)
class Expect:
    """The answer a case must get: gRPC code, reason, and the field that must be named.

    ``code`` is "OK" for what must succeed. ``fields`` are prefixes, one of which some
    violation must have. ``status`` is that of HTTP when it does not follow from the code.
    """

    code: str = "INVALID_ARGUMENT"
    reason: str = "INVALID_ARGUMENT"
    fields: tuple[str, ...] = ()
    status: int = 0


OK = Expect("OK", "")
MALFORMED = Expect(reason="MALFORMED_REQUEST")
DENIED = Expect("PERMISSION_DENIED", "PERMISSION_DENIED")
NOT_FOUND = Expect("NOT_FOUND", "MEMORY_NOT_FOUND")
LOST = Expect("ABORTED", "POSITION_LOST")


def wrong(*fields: str, reason: str = "INVALID_ARGUMENT") -> Expect:
    """INVALID_ARGUMENT that names one of the fields."""
    return Expect(reason=reason, fields=fields)


@dataclass(frozen=True)
class Case:
    """A request over one protocol. ``path`` is the gRPC method or the path of HTTP."""

    name: str
    protocol: Literal["grpc", "http"]
    path: str
    body: bytes
    expect: Expect
    headers: tuple[tuple[str, str], ...] = ()
    token: str | None = "own"
    method: str = "POST"
    timeout: float = 60.0


@dataclass
class Facts:
    """What is in the attacked store: ids, positions and secrets that must not be told."""

    own_ids: list[str] = field(default_factory=list)
    """Of acme/victim: no case may change them."""
    hidden_ids: list[str] = field(default_factory=list)
    """Of acme/victim, archived: only a reviewer may know of them."""
    foreign_ids: list[str] = field(default_factory=list)
    position: str = ""
    page_token: str = ""
    store_id: str = "?"
    tokens: dict[str, str] = field(default_factory=dict)
    secrets: list[str] = field(default_factory=list)
    """Texts that must not stand in any answer."""


Mutate = Callable[[Document, Random, Facts], Expect]


@dataclass(frozen=True)
class Mutation:
    """A change of a good request that must have a certain consequence, in any protocol
    of ``protocols``. ``weight`` is how often it is drawn, 1 being usual."""

    name: str
    call: Call
    change: Mutate
    protocols: tuple[Literal["grpc", "http"], ...] = ("grpc", "http")
    token: str | None = "own"
    weight: float = 1.0


MUTATIONS: list[Mutation] = []


def mutation(call: Call, **more: Any) -> Callable[[Mutate], Mutate]:
    """Registers a change of a good request."""

    def register(change: Mutate) -> Mutate:
        name = change.__name__.strip("_").replace("_", " ")
        MUTATIONS.append(Mutation(name, call, change, **more))
        return change

    return register


Make = Callable[[Random, Facts], Case]
WIRE: list[tuple[float, Make]] = []
"""Cases that are not changes of a document."""


def wire(weight: float = 1.0) -> Callable[[Make], Make]:
    """Registers a maker of cases."""

    def register(make: Make) -> Make:
        WIRE.append((weight, make))
        return make

    return register


# -- good requests -------------------------------------------------------------------------


def numbers(random: Random, count: int = DIMENSION) -> list[float]:
    """A vector that float32 holds exactly."""
    return [random.randrange(-64, 65) / 32 or 0.5 for _ in range(count)]


def good(call: Call, random: Random) -> Document:
    """A request that succeeds. Repeating it changes nothing, so that a long run does not
    make the store grow."""
    if call == "Health":
        return {}
    document: Document = {"namespace": {"tenant": TENANT, "agent": AGENT, "session": "s:1"}}
    if call == "Write":
        document["items"] = [memory(random) for _ in range(random.randrange(1, 4))]
    elif call == "Query":
        document["top_k"] = random.randrange(1, 20)
    return document


def memory(random: Random) -> Document:
    """An item; one of a hundred memories."""
    number = random.randrange(100)
    known = Random(number)
    return {
        "memory": {
            "dedup_key": f"memory:{number}",
            "content": f"the good memory number{number} of the sink",
            "vector": numbers(known),
            "metadata": {"importance": 0.5, "topic": "t", "attributes": {"n": number}},
        }
    }


def last(document: Document) -> tuple[Document, str]:
    """The memory that a mutation spoils, the last of the request, and its path."""
    return document["items"][-1]["memory"], f"items[{len(document['items']) - 1}].memory"
