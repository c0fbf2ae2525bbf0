"""Fills a running node with many memories, for tests and measurements.

Every memory depends on nothing but (seed, tenant number, memory number), so whoever reads
the store can compute what must be in it::

    python -m benchmarks.fill --address localhost:8848 --tenants 1000 --memories 10 --dimension 384
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from memsvc.v1 import memory_service_pb2 as pb
from memsvc.v1 import memory_service_pb2_grpc as pb_grpc
from memsvc.v1 import types_pb2 as types

AGENT = "bot"
CALL_S = 60.0


@dataclass(frozen=True, slots=True)
class Filling:
    """What is written: ``memories`` for each of ``tenants``, with vectors of ``dimension``
    and about ``text_chars`` characters of text."""

    tenants: int
    memories: int
    dimension: int
    text_chars: int = 200
    seed: int = 0

    @property
    def total(self) -> int:
        """Memories in all."""
        return self.tenants * self.memories

    def namespace(self, tenant: int) -> types.Namespace:
        """Where the memories of a tenant are."""
        return types.Namespace(tenant=f"tenant{tenant:06d}", agent=AGENT)

    def vector(self, tenant: int, number: int) -> NDArray[np.float32]:
        """The vector of a memory."""
        rng = np.random.default_rng((self.seed, tenant, number))
        return rng.standard_normal(self.dimension, np.float32)

    def text(self, tenant: int, number: int) -> str:
        """The text of a memory; its first word occurs nowhere else."""
        words = f"word{tenant}x{number} "
        filler = f"tenant {tenant} said something about topic {number % 7} again "
        return (words + filler * (self.text_chars // len(filler) + 1))[: self.text_chars]

    def items(self, tenant: int, low: int, high: int) -> list[pb.WriteItem]:
        """Memories [low, high) of a tenant."""
        return [
            pb.WriteItem(
                memory=pb.Memory(
                    dedup_key=f"{tenant}-{number}",
                    content=self.text(tenant, number),
                    vector=types.Vector(data=self.vector(tenant, number).tobytes()),
                )
            )
            for number in range(low, high)
        ]


def _batches(filling: Filling, batch: int) -> Iterator[tuple[int, int, int]]:
    for tenant in range(filling.tenants):
        for low in range(0, filling.memories, batch):
            yield tenant, low, min(low + batch, filling.memories)


def fill(address: str, filling: Filling, *, threads: int = 8, batch: int = 500) -> float:
    """Writes everything; returns the seconds taken. Raises grpc.RpcError; waits while the
    queue of the writer is full."""
    started = time.monotonic()
    with (
        grpc.insecure_channel(address) as channel,
        ThreadPoolExecutor(threads) as pool,
    ):
        stub = pb_grpc.MemoryServiceStub(channel)
        waiting = _batches(filling, batch)
        # In portions, so that a million batches are not all queued at once.
        while portion := list(itertools.islice(waiting, 50 * threads)):
            for _ in pool.map(lambda one: _write(stub, filling, *one), portion):
                pass
    return time.monotonic() - started


def _write(stub: Any, filling: Filling, tenant: int, low: int, high: int) -> None:
    request = pb.WriteRequest(
        namespace=filling.namespace(tenant), items=filling.items(tenant, low, high)
    )
    while True:
        try:
            stub.Write(request, timeout=CALL_S)
            return
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
            time.sleep(0.05)


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address", default="localhost:8848")
    parser.add_argument("--tenants", type=int, default=1)
    parser.add_argument("--memories", type=int, default=10_000, help="for each tenant")
    parser.add_argument("--dimension", type=int, default=1_536)
    parser.add_argument("--text-chars", type=int, default=200)
    parser.add_argument("--threads", type=int, default=8)
    given = parser.parse_args(arguments)
    filling = Filling(given.tenants, given.memories, given.dimension, given.text_chars)
    took = fill(given.address, filling, threads=given.threads)
    print(f"{filling.total} memories in {took:.1f} s, {filling.total / took:,.0f}/s")


if __name__ == "__main__":
    main()
