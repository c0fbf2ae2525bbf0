"""A primary and a replica of their own for the examples, with tokens and a rate limit."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import grpc
import psutil
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

from memsvc.service.tokens import Right
from memsvc.service.tokens_edit import add_token

ROOT = Path(__file__).resolve().parents[1]
DIMENSION = 8
CALLS_PER_SECOND, BURST = 10, 10
READY_S = 60.0


class Member:
    """One node: ``memsvc serve`` on free ports of this machine."""

    def __init__(self, folder: Path, feeds: list[str], number: int, tokens: Path) -> None:
        folder.mkdir(parents=True)
        self.address, self.http, self.feed = f"127.0.0.1:{free_port()}", free_port(), feeds[number]
        self.log, self.config = folder / "memsvc.log", folder / "memsvc.yaml"
        self.config.write_text(
            yaml.safe_dump(
                {
                    "node": {"role": "replica" if number else "primary"},
                    "replication": {
                        "primary": feeds[0] if number else "",
                        "listen": self.feed,
                        "advertise": self.address,
                        "nodes": feeds,
                    },
                    "server": {"listen": self.address, "http_listen": f"127.0.0.1:{self.http}"},
                    "auth": {"mode": "token", "tokens_file": str(tokens)},
                    "storage": {"data_dir": str(folder / "data"), "reserve_bytes": 0},
                    "index": {"dimension": DIMENSION},
                    "limits": {"requests_per_second": CALLS_PER_SECOND, "burst": BURST},
                    "log": {"level": "warning", "format": "text"},
                }
            )
        )
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it; does not wait."""
        # Variables of the caller's own memsvc would win over the file.
        env = {name: value for name, value in os.environ.items() if name[:7] != "MEMSVC_"}
        env["PYTHONPATH"] = str(ROOT)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "memsvc.cli", "serve", "--config", str(self.config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env,
            )

    def serves(self, name: str) -> bool:
        """What it says of itself by the health service."""
        with grpc.insecure_channel(self.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            try:
                answer = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=2)
            except grpc.RpcError:
                return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def wait(self, name: str) -> None:
        """Waits until it serves what ``name`` stands for in docs/howto/load-balancing.md;
        RuntimeError with the end of its log when it does not."""
        until = time.monotonic() + READY_S
        while not self.serves(name):
            assert self.process is not None
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{self.address} does not serve {name!r}:\n{self.log_tail()}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Asks it to stop, and waits for it."""
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def kill(self) -> None:
        """Ends it at once, as a crash of its machine would."""
        assert self.process is not None
        children = psutil.Process(self.process.pid).children(recursive=True)
        for process in (self.process, *children):  # the supervisor first: it would start another
            with contextlib.suppress(psutil.NoSuchProcess):  # a reader ends with its server
                process.kill()
            process.wait(10)

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class Group:
    """Two nodes; to be used with ``with``."""

    def __init__(self, folder: Path) -> None:
        tokens = folder / "tokens.yaml"
        self.token = add_token(
            tokens, "example", ["examples"], [Right.READ, Right.WRITE, Right.FORGET]
        )
        self.admin_token = add_token(tokens, "ops", ["*"], [Right.ADMIN, Right.READ])
        feeds = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        self.primary, self.replica = (
            Member(folder / name, feeds, number, tokens)
            for number, name in enumerate(("first", "second"))
        )

    @property
    def nodes(self) -> str:
        """Addresses as the examples take them. The replica stands first: who has not looked for
        the primary is refused."""
        return f"{self.replica.address},{self.primary.address}"

    def __enter__(self) -> Group:
        try:
            for member in (self.primary, self.replica):
                member.start()
            self.wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def wait_ready(self) -> None:
        """Waits until both are fit for reads, and the primary for changes."""
        for member in (self.primary, self.replica):
            member.wait("memsvc.v1.MemoryService")
        self.primary.wait("memsvc.v1.MemoryService.Write")

    def __exit__(self, *_: object) -> None:
        for member in (self.replica, self.primary):
            member.stop()


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
