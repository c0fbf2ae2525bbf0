"""A real server process on a free port, and what it takes of the machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import grpc
import psutil
import yaml

from benchmarks.limits import MemoryGroup
from memsvc.client import MemoryClient
from memsvc.client.connection import Timeouts
from memsvc.config.sources import nested
from memsvc.v1 import memory_service_pb2 as pb
from memsvc.v1 import memory_service_pb2_grpc as pb_grpc

START_SECONDS: Final = 120.0
CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", 256 << 20),
    ("grpc.max_send_message_length", 256 << 20),
    ("grpc.use_local_subchannel_pool", 1),
)


class ServerFailed(Exception):
    """The server did not start; the message has the end of its log."""


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def open_stub(address: str) -> tuple[grpc.Channel, Any]:
    """A channel of its own and the generated stub over it."""
    channel = grpc.insecure_channel(address, CHANNEL_OPTIONS)
    return channel, pb_grpc.MemoryServiceStub(channel)


def connect(channel: grpc.Channel, seconds: float = 30.0) -> bool:
    """Waits until somebody answers, and tells whether a service is ready. Raises
    grpc.RpcError when nobody does. (The ready future of gRPC leaves a thread that stumbles
    over a channel closed soon after.)"""
    stub = pb_grpc.MemoryServiceStub(channel)
    try:
        answer = stub.Health(pb.HealthRequest(), wait_for_ready=True, timeout=seconds)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return True
        raise
    return bool(answer.ready)


class Server:
    """``python -m memsvc.server`` over a data directory; a context manager.

    ``settings`` are dotted keys. ``wait=False`` returns before it answers; another ``program``
    may stand for the server; ``within`` a control group its memory is counted.
    """

    def __init__(
        self,
        data_dir: Path,
        settings: Mapping[str, object],
        *,
        wait: bool = True,
        program: Sequence[str] = ("-m", "memsvc.server"),
        within: MemoryGroup | None = None,
    ) -> None:
        data_dir.mkdir(parents=True, exist_ok=True)
        self.data_dir = data_dir
        self.address = f"127.0.0.1:{free_port()}"
        self._log = data_dir.parent / f"{data_dir.name}.log"
        config = data_dir.parent / f"{data_dir.name}.yaml"
        config.write_text(
            yaml.safe_dump(
                nested(
                    {
                        "storage.data_dir": str(data_dir),
                        "server.listen": self.address,
                        "server.http_listen": "",
                        **settings,
                    }
                )
            )
        )
        # Settings of the surroundings must not reach what is measured.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MEMSVC_")}
        command = [sys.executable, *program, "--config", str(config)]
        self.launched = time.perf_counter()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command if within is None else within.command(command),
                stdout=log,
                stderr=log,
                env=environment,
            )
        self.client = MemoryClient(
            self.address, timeouts=Timeouts(connect=5.0, read=60.0, write=60.0)
        )
        self.channel, self.stub = open_stub(self.address)
        if wait:
            self.wait()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def check(self) -> None:
        """Raises ServerFailed when the process has ended."""
        if self._process.poll() is not None:
            text = self._log.read_text(errors="replace")[-2_000:]
            raise ServerFailed(f"exit status {self._process.returncode}\n{text}")

    def wait(self, seconds: float = START_SECONDS) -> None:
        """Until it is ready."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.check()
            try:
                if connect(self.channel, 0.5):
                    return
            except grpc.RpcError:
                continue
            time.sleep(0.02)
        raise ServerFailed(f"not ready after {seconds:.0f} s")

    def settle(self, *, merge: bool = False, seconds: float = 3_600.0) -> float:
        """Seals and (with ``merge``) merges everything, and waits; returns seconds taken."""
        began = time.monotonic()
        asked: dict[str, Any] = {"seal_min_rows": 1, "merge_all": True} if merge else {}
        while not self.client.admin.maintain(**asked, wait_seconds=60.0).idle:
            if time.monotonic() - began > seconds:
                raise ServerFailed(f"maintenance was not done after {seconds:.0f} s")
            asked = {}
        return time.monotonic() - began

    def memory(self) -> dict[str, float]:
        """MB of the process with its readers, private (uss) and resident (rss), and of its
        builders (uss)."""
        main = psutil.Process(self.pid)
        found = {"private_mb": 0.0, "resident_mb": 0.0, "builders_mb": 0.0}
        for process in (main, *main.children(recursive=True)):
            try:
                info, command = process.memory_full_info(), process.cmdline()
            except psutil.NoSuchProcess:
                continue
            if process == main or "memsvc.readers.process" in command:
                found["private_mb"] += info.uss / 1e6
                found["resident_mb"] += info.rss / 1e6
            else:
                found["builders_mb"] += info.uss / 1e6
        return found

    def anonymous_bytes(self) -> int:
        """Memory of the process that is of no file: what cannot be dropped and read again."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.split("RssAnon:")[1].split()[0]) * 1_024

    def stop(self) -> None:
        """In good order."""
        self.client.close()
        self.channel.close()
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
