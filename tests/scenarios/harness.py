"""Real server processes for scenario tests: started, killed, watched and cleaned up.

``Node`` is one server process on free ports with a data directory. What it logs goes to a
file and is printed when a test fails. Nothing outlives the test: the server, its builders
and mounted file systems are ended by process group and by data directory.

Most are forked from a process that has loaded everything, which makes their start five times as
cheap; see forking.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import yaml
from google.rpc import error_details_pb2, status_pb2

from memsvc.admin.v1 import admin_service_pb2 as admin_pb
from memsvc.admin.v1 import admin_service_pb2_grpc as admin_rpc
from memsvc.config.sources import nested
from memsvc.v1 import memory_service_pb2 as pb
from memsvc.v1 import memory_service_pb2_grpc as rpc
from memsvc.v1 import types_pb2 as types
from tests.ports import free_port
from tests.scenarios.forking import Forked

REPOSITORY = Path(__file__).parents[2]
DIMENSION = 16
START_S = 60.0
CALL_S = 30.0


class Node:
    """One server process. ``settings`` are dotted keys; the defaults suit small tests. It runs in
    the namespace ``network`` if one is named; ``host`` is where the test reaches it. ``fresh``: it
    is started by a command, in an interpreter of its own, not forked."""

    def __init__(self, folder: Path, *, data_dir: Path | None = None, **settings: Any) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.data_dir = data_dir or folder / "data"
        self.config = folder / "memsvc.yaml"
        self.log_file = folder / "server.log"
        self.host = "127.0.0.1"
        self.port, self.http_port = free_port(), free_port()
        self.network = ""
        self.fresh = not hasattr(os, "pidfd_open")  # forking needs it; Linux has it
        self.settings: dict[str, Any] = {
            "server.listen": f"127.0.0.1:{self.port}",
            "server.http_listen": f"127.0.0.1:{self.http_port}",
            "server.readers": 0,
            "storage.data_dir": str(self.data_dir),
            "storage.reserve_bytes": 0,
            "storage.snapshot_interval_min": 0,
            "index.dimension": DIMENSION,
            "query.min_score": -1.0,
            "query.timeout_ms": 20_000,
            "lifecycle.compact_cron": "",
            "log.format": "text",
        }
        self.configure(**settings)
        self.credentials: grpc.ChannelCredentials | None = None
        """For a server that encrypts."""
        self.process: subprocess.Popen[bytes] | Forked | None = None
        self._channel: grpc.Channel | None = None

    def configure(self, **settings: Any) -> None:
        """Writes settings, given as ``storage__seal_rows=50``, to the configuration file."""
        for name, value in settings.items():
            self.settings[name.replace("__", ".")] = value
        self.config.write_text(yaml.safe_dump(nested(self.settings), allow_unicode=True))

    @property
    def command(self) -> list[str]:
        """What starts it."""
        return [sys.executable, "-m", "memsvc.server", *self.arguments]

    @property
    def arguments(self) -> list[str]:
        """What it is told."""
        return ["--config", str(self.config)]

    # -- life --------------------------------------------------------------------------

    def start(
        self, *, wait: bool = True, prefix: Sequence[str] = (), command: Sequence[str] = ()
    ) -> Node:
        """Starts the process and waits until it is ready; by a command if there is one, or a
        ``prefix`` to it (for instance strace)."""
        assert self.process is None or self.process.poll() is not None, "it is running"
        self.disconnect()
        env = {k: v for k, v in os.environ.items() if not k.startswith("MEMSVC_")}
        if prefix or command or self.fresh:
            assert not self.network
            with self.log_file.open("ab") as log:
                self.process = subprocess.Popen(
                    [*prefix, *(command or self.command)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=REPOSITORY,
                    env=env,
                    start_new_session=True,
                )
        else:
            self.process = Forked(
                self.arguments,
                log=self.log_file,
                folder=REPOSITORY,
                env=env,
                network=self.network,
            )
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self, seconds: float = START_S) -> None:
        """Waits for the first good health answer."""
        assert self.process is not None
        until = time.monotonic() + seconds
        while True:
            try:
                if self.stub().Health(pb.HealthRequest(), timeout=2).ready:
                    return
            except grpc.RpcError:
                self.disconnect()
            code = self.process.poll()
            assert code is None, f"the server ended with {code}\n{self.log_tail()}"
            assert time.monotonic() < until, f"not ready in {seconds} s\n{self.log_tail()}"
            time.sleep(0.02)

    @property
    def pid(self) -> int:
        """Process id of the server."""
        assert self.process is not None
        return self.process.pid

    def builders(self) -> list[psutil.Process]:
        """Builder processes of the server."""
        try:
            return [
                child
                for child in psutil.Process(self.pid).children(recursive=True)
                if "memsvc.service.builder_process" in child.cmdline()
            ]
        except psutil.Error:
            return []

    def signal(self, number: int) -> None:
        """Sends a signal to the server."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9 of the server alone, as a crash would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.disconnect()

    def stop(self, seconds: float = 60.0) -> int:
        """SIGTERM; returns the exit status."""
        assert self.process is not None
        self.process.terminate()
        code = self.process.wait(seconds)
        self.disconnect()
        return code

    def close(self) -> None:
        """Ends everything that uses the data directory; for the end of a test."""
        self.disconnect()
        if self.process is not None:
            # The whole session: a supervisor or strace would leave the server behind.
            for process in _session(self.process.pid):
                with contextlib.suppress(psutil.Error):
                    process.kill()
            self.process.wait()
        for process in users_of(self.data_dir):
            with contextlib.suppress(psutil.Error):
                process.kill()
                process.wait(10)

    # -- calls -------------------------------------------------------------------------

    def channel(self) -> grpc.Channel:
        """The connection; made anew after a restart."""
        if self._channel is None:
            address = f"{self.host}:{self.port}"
            options = [
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.max_receive_message_length", 1 << 26),
                ("grpc.initial_reconnect_backoff_ms", 50),
                ("grpc.max_reconnect_backoff_ms", 200),
            ]
            if self.credentials is None:
                self._channel = grpc.insecure_channel(address, options)
            else:
                self._channel = grpc.secure_channel(address, self.credentials, options)
        return self._channel

    def disconnect(self) -> None:
        """Closes the connection."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def stub(self) -> rpc.MemoryServiceStub:
        """The four calls."""
        return rpc.MemoryServiceStub(self.channel())

    def admin(self) -> admin_rpc.AdminServiceStub:
        """Administration."""
        return admin_rpc.AdminServiceStub(self.channel())

    def inspect(self, tenant: str = "", agent: str = "", **more: Any) -> dict[str, Any]:
        """AdminService.Inspect."""
        request = admin_pb.InspectRequest(tenant=tenant, agent=agent, **more)
        found: dict[str, Any] = json.loads(self.admin().Inspect(request, timeout=60).json)
        return found

    def maintain(self, seconds: float = 120.0, **wishes: Any) -> None:
        """AdminService.Maintain, waited for; fails when it is not done in time."""
        request = admin_pb.MaintainRequest(wait=True, **wishes)
        answer = self.admin().Maintain(request, timeout=seconds)
        assert answer.idle, f"maintenance is not done\n{self.log_tail()}"

    def log_tail(self, lines: int = 60) -> str:
        """The end of the log."""
        text = self.log_file.read_text(errors="replace") if self.log_file.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def files(self) -> list[Path]:
        """Every file of the data directory now."""
        return files_below(self.data_dir)

    def segment_files(self) -> list[Path]:
        """Files of sealed segments."""
        return [p for p in self.files() if "segments" in p.parts and p.suffix != ".damaged"]


def files_below(folder: Path) -> list[Path]:
    """Every file below a folder; folders may vanish meanwhile."""
    return [Path(top) / name for top, _, names in os.walk(folder) for name in names]


def _session(leader: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getsid(process.pid) == leader:
                found.append(process)
    return found


def users_of(data_dir: Path) -> list[psutil.Process]:
    """Processes that name the data directory in their command line, as builders do."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if str(data_dir) in process.cmdline():
                found.append(process)
    return found


# -- requests ------------------------------------------------------------------------------


def namespace(tenant: str = "acme", agent: str = "bot", session: str = "") -> types.Namespace:
    """A namespace."""
    return types.Namespace(tenant=tenant, agent=agent, session=session)


def vector(seed: int, dimension: int = DIMENSION) -> np.ndarray[Any, np.dtype[np.float32]]:
    """A vector that depends on nothing but its number."""
    return np.random.default_rng(seed).standard_normal(dimension).astype(np.float32)


def wire(numbers: np.ndarray[Any, np.dtype[np.float32]]) -> types.Vector:
    """The vector as raw bytes."""
    return types.Vector(data=numbers.astype("<f4").tobytes())


def memory(number: int, text: str = "", *, dimension: int = DIMENSION, **more: Any) -> pb.WriteItem:
    """A new memory with a unique word ("word7x") in its text."""
    return pb.WriteItem(
        memory=pb.Memory(
            dedup_key=f"key-{number}",
            content=text or f"memory about word{number}x and its neighbours",
            vector=wire(vector(number, dimension)),
            **more,
        )
    )


def write(node: Node, items: Sequence[pb.WriteItem], **more: Any) -> pb.WriteResponse:
    """Writes items in one call."""
    request = pb.WriteRequest(namespace=more.pop("namespace", namespace()), items=items, **more)
    return node.stub().Write(request, timeout=CALL_S)


def fill(node: Node, numbers: Sequence[int], batch: int = 200, **more: Any) -> list[str]:
    """Writes memories by number; returns their ids."""
    ids: list[str] = []
    dimension = more.pop("dimension", DIMENSION)
    for start in range(0, len(numbers), batch):
        items = [memory(n, dimension=dimension) for n in numbers[start : start + batch]]
        ids += [result.id for result in write(node, items, **more).results]
    return ids


def browse(node: Node, space: types.Namespace | None = None) -> dict[str, pb.Hit]:
    """Every visible memory of a namespace, by id."""
    found: dict[str, pb.Hit] = {}
    token = ""
    while True:
        answer = node.stub().Query(
            pb.QueryRequest(
                namespace=space or namespace(), mode=pb.MODE_BROWSE, top_k=200, page_token=token,
                include=pb.Include(content=True),
            ),
            timeout=CALL_S,
        )  # fmt: skip
        assert answer.degraded.level == 0, answer.degraded
        for hit in answer.items:
            assert hit.id not in found, f"{hit.id} twice"
            found[hit.id] = hit
        token = answer.next_page_token
        if not token:
            return found


def by_vector(node: Node, number: int, **more: Any) -> pb.QueryResponse:
    """A search for the memory with a number, by its own vector."""
    more.setdefault("namespace", namespace())
    more.setdefault("top_k", 3)
    dimension = more.pop("dimension", DIMENSION)
    request = pb.QueryRequest(vector=wire(vector(number, dimension)), **more)
    return node.stub().Query(request, timeout=CALL_S)


def by_word(node: Node, word: str, **more: Any) -> pb.QueryResponse:
    """A search by a word."""
    more.setdefault("namespace", namespace())
    return node.stub().Query(pb.QueryRequest(text=word, **more), timeout=CALL_S)


def forget(node: Node, ids: Sequence[str], **more: Any) -> pb.ForgetResponse:
    """Erases memories by id."""
    more.setdefault("namespace", namespace())
    more.setdefault("mode", pb.FORGET_MODE_HARD)
    return node.stub().Forget(pb.ForgetRequest(ids=ids, **more), timeout=CALL_S)


def tell(text: str) -> None:
    """Prints a figure for people (shown with ``pytest -s``)."""
    print(text, flush=True)  # noqa: T201


def error_info(error: grpc.RpcError) -> tuple[grpc.StatusCode, str, str]:
    """(code, reason, hint) of a refused call."""
    reason = hint = ""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for detail in status_pb2.Status.FromString(value).details:
                info = error_details_pb2.ErrorInfo()
                if detail.Unpack(info):
                    reason, hint = info.reason, info.metadata.get("hint", "")
    return error.code(), reason, hint
