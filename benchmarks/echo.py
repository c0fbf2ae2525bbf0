"""The bare gRPC limit: a server that parses the same request and answers a prebuilt message.

    python -m benchmarks.echo ADDRESS FILE

FILE holds a serialised QueryResponse. It is kept as a message and serialised for each call,
as any Python server must.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc

from benchmarks.serving import connect, open_stub
from memsvc.v1 import memory_service_pb2 as pb
from memsvc.v1 import memory_service_pb2_grpc as pb_grpc


class _Echo(pb_grpc.MemoryServiceServicer):
    def __init__(self, answer: pb.QueryResponse) -> None:
        self._answer = answer

    def Query(self, request: pb.QueryRequest, context: grpc.ServicerContext) -> pb.QueryResponse:
        """Always the same."""
        return self._answer


def serve(address: str, answer: pb.QueryResponse) -> grpc.Server:
    """Starts the server; raises RuntimeError when the address is taken."""
    options = [("grpc.max_receive_message_length", 64 << 20), ("grpc.so_reuseport", 0)]
    server = grpc.server(ThreadPoolExecutor(8), options=options)
    pb_grpc.add_MemoryServiceServicer_to_server(
        _Echo(answer),  # type: ignore[abstract]  # the other calls stay unimplemented
        server,
    )
    server.add_insecure_port(address)
    server.start()
    return server


class EchoServer:
    """The server in a process of its own; a context manager. ``address`` must be free."""

    def __init__(self, address: str, answer: pb.QueryResponse) -> None:
        self._folder = tempfile.TemporaryDirectory()
        file = Path(self._folder.name) / "answer.bin"
        file.write_bytes(answer.SerializeToString())
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.echo", address, str(file)]
        )
        self.channel, self.stub = open_stub(address)
        connect(self.channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.channel.close()
        self._process.terminate()
        self._process.wait()
        self._folder.cleanup()


def main() -> None:
    address, file = sys.argv[1:]
    sys.setswitchinterval(0.0005)  # as the service
    server = serve(address, pb.QueryResponse.FromString(Path(file).read_bytes()))
    try:
        threading.Event().wait()
    finally:
        server.stop(0)


if __name__ == "__main__":
    main()
