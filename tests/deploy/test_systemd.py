"""The systemd unit starts what it says, and the service lives under its restrictions."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from memsvc import notify
from memsvc.config import load
from memsvc.server import HEARTBEAT_MARGIN_S
from memsvc.supervisor import EXIT_CONFIG
from tests.cli.live import Live
from tests.waiting import until

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "deploy/systemd/memsvc@.service"
CONFIGS = ROOT / "deploy/config"

# prctl: no new privileges, and no memory that was written is ever executed (Linux 6.3 and later;
# before, the second does nothing). Both hold for what is started from here.
CONFINED = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0
libc.prctl(65, 1, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


class _Unit(configparser.RawConfigParser):
    """Keys as they are written, several of one name allowed (the last one counts)."""

    def __init__(self) -> None:
        super().__init__(strict=False, comment_prefixes=("#", ";"), interpolation=None)

    def optionxform(self, optionstr: str) -> str:
        return optionstr


@pytest.fixture(scope="module")
def unit() -> _Unit:
    parsed = _Unit()
    parsed.read(UNIT, encoding="utf-8")
    return parsed


def test_unit_says_what_the_service_does(unit: _Unit) -> None:
    service = unit["Service"]
    assert set(unit.sections()) == {"Unit", "Service", "Install"}
    assert service["RestartPreventExitStatus"] == str(EXIT_CONFIG)
    # Running calls may finish, then the store is closed; SIGKILL comes after both.
    grace = load(None, {}, {}).settings.server.graceful_shutdown_ms / 1000
    assert int(service["TimeoutStopSec"]) > grace + HEARTBEAT_MARGIN_S
    assert service["Type"] == "notify" and service["NotifyAccess"] == "main"
    # Those that the service cannot live under: 1 TiB of map, /proc/meminfo, a killed builder.
    assert "LimitAS" not in service and "ProcSubset" not in service
    assert service["OOMPolicy"] == "continue"
    assert service["StateDirectory"] == "memsvc/%i"


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    """By its own check where it is installed; everywhere no line is one that it would ignore."""
    text = UNIT.read_text(encoding="utf-8")
    for line in text.splitlines():
        assert re.fullmatch(
            r"|#.*|\[(Unit|Service|Install)\]|[A-Z]\w+=.*\S|[A-Z]\w+Set=|AmbientCapabilities=", line
        ), line
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        return
    program = str(ROOT / "scripts/lock.sh")  # any that exists: it is checked to be executable
    instance = tmp_path / "memsvc@main.service"
    instance.write_text(text.replace("/opt/memsvc/.venv/bin/memsvc", program))
    found = subprocess.run(
        [analyze, "verify", str(instance)], capture_output=True, text=True, timeout=60
    )
    ours = [line for line in found.stderr.splitlines() if "memsvc@" in line]
    assert (found.returncode, ours) == (0, [])


@pytest.mark.parametrize("role", ["standalone", "primary", "replica"])
def test_example_configurations_are_valid(role: str) -> None:
    settings = load(CONFIGS / f"{role}.yaml", {}, {}).settings
    assert settings.node.role == role
    assert settings.auth.mode == "token"
    # What systemd lets it write, see StateDirectory; the node of the example is called main.
    assert str(settings.storage.data_dir) == "/var/lib/memsvc/main/data"


def test_nodes_of_the_example_group_differ_in_three_settings() -> None:
    one = load(CONFIGS / "primary.yaml", {}, {}).settings.model_dump()
    other = load(CONFIGS / "replica.yaml", {}, {}).settings.model_dump()
    differ = {
        f"{section}.{name}"
        for section, values in one.items()
        for name in values
        if values[name] != other[section][name]
    }
    assert differ == {"node.role", "replication.primary", "replication.advertise"}


class _Manager:
    """The socket of a service manager."""

    def __init__(self, folder: Path) -> None:
        self.address = str(folder / "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.address)
        self.socket.settimeout(60)

    def next(self) -> list[str]:
        return self.socket.recv(4096).decode().splitlines()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[_Manager]:
    made = _Manager(tmp_path)
    yield made
    made.socket.close()


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    made = Live(tmp_path / "node")
    yield made
    made.end()


def test_service_started_as_by_the_unit_tells_when_it_is_ready_and_when_it_stops(
    unit: _Unit, live: Live, manager: _Manager
) -> None:
    program, *words = unit["Service"]["ExecStart"].split()
    assert program == "/opt/memsvc/.venv/bin/memsvc"
    words[words.index("/etc/memsvc/%i.yaml")] = str(live.config)
    command = [sys.executable, "-m", "memsvc.cli", *words]
    with (live.folder / "log").open("ab") as log:
        live.process = subprocess.Popen(
            [sys.executable, "-c", CONFINED, *command],
            env={**live.env, "NOTIFY_SOCKET": manager.address},
            cwd=live.folder,
            stdout=log,
            stderr=log,
        )
    assert notify.READY in manager.next()
    # No waiting: it said that it is ready.
    assert live.run("health").returncode == 0, live.log()
    assert live.run("write", "-n", "acme/bot", "the dog is called Rex").returncode == 0, live.log()
    assert unit["Service"]["ExecReload"] == "/bin/kill -HUP $MAINPID"
    os.kill(live.process.pid, signal.SIGHUP)
    live.until_log("reloaded")
    # Its server died: the manager reads why, and that it is back.
    os.kill(live.server_pid(), signal.SIGKILL)
    assert manager.next() == ["STATUS=server ended (signal SIGKILL); restarting"]
    assert notify.READY in manager.next()
    os.kill(live.process.pid, signal.SIGTERM)
    assert notify.STOPPING in manager.next()
    until(lambda: live.process is not None and live.process.poll() is not None, 60, live.log)
    assert live.process.returncode == 0


def test_refused_configuration_ends_with_the_status_that_the_unit_does_not_restart_after(
    live: Live,
) -> None:
    live.config.write_text("server:\n  listne: 1\n")
    assert live.run_apart("serve", "--config", str(live.config)).returncode == EXIT_CONFIG


def test_manager_that_does_not_listen_ends_nothing(tmp_path: Path) -> None:
    assert not notify.Manager({}).tell(notify.READY)
    assert not notify.Manager({notify.VARIABLE: str(tmp_path / "nobody")}).tell(notify.READY)
    assert not notify.Manager({notify.VARIABLE: "@" + "x" * 200}).tell(notify.READY)


def test_address_may_be_abstract() -> None:
    name = f"memsvc-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0{name}")
        assert notify.Manager({notify.VARIABLE: f"@{name}"}).tell(notify.READY, status="serving")
        assert listener.recv(100) == b"READY=1\nSTATUS=serving"
