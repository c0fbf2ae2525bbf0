"""Hermes in a virtual environment of its own, with memsvc in it, and its homes."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from memsvc.integrations.hermes.install import install

ROOT: Final = Path(__file__).parents[2]
HERMES: Final = "hermes-agent==0.19.0"
ANSWER_S: Final = 120.0
CLEAN: Final = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("MEMSVC_", "HERMES_", "PYTHON", "OPENAI_", "OPENROUTER_"))
}


def hermes_environment() -> Path:
    """The environment, made when there is none for this state of pyproject.toml. Kept, since it
    takes half a minute; `make clean` removes it."""
    state = f"{HERMES} {sys.version} {ROOT} {(ROOT / 'pyproject.toml').read_text()}"
    folder = ROOT / ".hermes" / hashlib.sha256(state.encode()).hexdigest()[:16]
    folder.parent.mkdir(exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other workers wait for the one that makes it
        if not (folder / "done").exists():
            venv.create(folder, with_pip=False, clear=True)
            made = subprocess.run(
                [
                    sys.executable, "-m", "pip", "--python", str(folder / "bin/python"), "install",
                    "--quiet", "--no-compile", "--only-binary", ":all:", HERMES,
                    "--editable", f"{ROOT}[local]",
                ],
                capture_output=True,
                text=True,
            )  # fmt: skip
            assert made.returncode == 0, made.stderr[-4_000:]
            (folder / "done").touch()
    return folder


class Home:
    """A Hermes home with the plugin in it. ``settings`` are those of the plugin."""

    def __init__(self, environment: Path, folder: Path, **settings: Any) -> None:
        self.environment = environment
        self.folder = folder
        self.folder.mkdir(parents=True)
        install(self.folder)
        self.configure(**settings)
        self.config: dict[str, Any] = {
            "memory": {"provider": "memsvc"},
            "security": {"tirith_enabled": False},
        }
        self.write_config()

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables of a process that has it."""
        # No other machine is looked for, and nothing of this one's user.
        return CLEAN | {
            "HERMES_HOME": str(self.folder),
            "HOME": str(self.folder.parent),
            "PYTHONDONTWRITEBYTECODE": "",
        }

    def configure(self, **settings: Any) -> None:
        """Writes the settings of the plugin."""
        path = self.folder / "memsvc" / "config.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"recall_seconds": 3.5, **settings}))

    def write_config(self) -> None:
        """Writes Hermes' own configuration: JSON is YAML."""
        (self.folder / "config.yaml").write_text(json.dumps(self.config))

    def run(self, *command: str, input: str = "", **variables: str) -> str:
        """A command of the environment, as ``hermes memory status``; its output. Fails when it
        does."""
        done = subprocess.run(
            [str(self.environment / "bin" / command[0]), *command[1:]],
            input=input,
            capture_output=True,
            text=True,
            env=self.variables | variables,
            cwd=self.folder.parent,
            timeout=ANSWER_S,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def log(self) -> str:
        """What Hermes wrote to its logs."""
        return "\n".join(path.read_text() for path in self.folder.glob("logs/*.log"))


class Hermes:
    """A process of Hermes: its real memory manager, see driver.py. A context manager."""

    def __init__(self, home: Home, *options: str, variables: Mapping[str, str] = {}) -> None:
        self.home = home
        self._errors = (home.folder / "driver.err").open("a+")
        self._process = subprocess.Popen(
            [home.environment / "bin/python", Path(__file__).parent / "driver.py", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=home.variables | variables,
            cwd=home.folder.parent,
        )

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Calls a function of the driver, or a method of the manager of the agent ``args[0]``."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps({"call": name, "args": args, "kwargs": kwargs}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the process ended\n{self.errors()}"
        answer = json.loads(line)
        assert "error" not in answer, f"{name}: {answer['error']}\n{self.errors()}"
        return answer["is"]

    def tool(self, agent: str, name: str, **args: Any) -> dict[str, Any]:
        """Calls a tool of the memory; its answer."""
        answer: dict[str, Any] = json.loads(self.call("handle_tool_call", agent, name, args))
        return answer

    def kill(self) -> None:
        """Ends it as a crash would."""
        self._process.kill()
        self._process.wait()

    def end(self) -> int:
        """Ends it as the end of the program does; its exit code."""
        assert self._process.stdin
        self._process.stdin.close()
        return self._process.wait(ANSWER_S)

    def errors(self) -> str:
        """What it wrote to standard error, and to Hermes' logs."""
        self._errors.seek(0)
        return self._errors.read()[-4_000:] + self.home.log()[-2_000:]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._errors.close()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()
