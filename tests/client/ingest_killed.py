"""A program that ingests a conversation and tells how far it is; tests kill it.

Arguments: address, tenant/agent, spill file, number of turns, 1 = flush now and then. Prints the
number of turns that were taken, a line each, and "done".
"""

from __future__ import annotations

import sys

from memsvc.client import HashingEmbedder, MemoryClient
from memsvc.client.ingest import Ingestor
from tests.client.conversations import conversation
from tests.client.ingesting import settled


def main() -> None:
    address, space, spill, turns, flushes = sys.argv[1:]
    with (
        MemoryClient(address) as client,
        Ingestor(client, space, HashingEmbedder(64), spill=spill) as ingest,
    ):
        for number, turn in enumerate(conversation("s1", int(turns))):
            ingest.add(turn)
            print(number + 1, flush=True)  # noqa: T201
            if flushes == "1" and number % 7 == 3:
                ingest.flush()
        settled(ingest)
    print("done", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
