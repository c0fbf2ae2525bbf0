"""Builds the generator of gRPC load and runs it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from memsvc.v1 import memory_service_pb2 as pb

SOURCE: Final = Path(__file__).with_name("grpc_load.c")
QUERY: Final = "/memsvc.v1.MemoryService/Query"
ANSWER_SHARE: Final = 0.9
"""A whole answer has at least this share of the bytes of the shortest one seen before; a refusal
has none, an answer cut short fewer."""


def compiler() -> str | None:
    """A C compiler, if there is one."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


class GrpcLoad:
    """The generator, compiled into ``folder``, with the queries it sends. Raises RuntimeError
    without a compiler."""

    def __init__(self, folder: Path, requests: Sequence[pb.QueryRequest], least_bytes: int) -> None:
        """``least_bytes``: of the shortest whole answer to these requests."""
        found = compiler()
        if found is None:
            raise RuntimeError("a C compiler is needed (Debian: apt install gcc libc6-dev)")
        folder.mkdir(parents=True, exist_ok=True)
        self._program = folder / "grpc_load"
        subprocess.run([found, "-O2", "-o", self._program, SOURCE], check=True)
        self._messages = folder / "queries.bin"
        with self._messages.open("wb") as file:
            for request in requests:
                data = request.SerializeToString()
                file.write(len(data).to_bytes(4, "little") + data)
        self._least_bytes = least_bytes

    def run(self, address: str, connections: int, warm_up_s: float, seconds: float) -> float:
        """Answers a second in one round. Raises RuntimeError when a call was not answered whole."""
        host, _, port = address.rpartition(":")
        done = subprocess.run(
            [self._program, host, port, QUERY, self._messages, str(connections),
             str(warm_up_s), str(seconds)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(done.stderr.strip())
        found = json.loads(done.stdout)
        if found["failed"] or found["bytes_least"] < ANSWER_SHARE * self._least_bytes:
            raise RuntimeError(
                f"{found['failed']} calls failed, the shortest answer had {found['bytes_least']} "
                f"bytes of {self._least_bytes}"
            )
        return float(found["answers"] / found["seconds"])
