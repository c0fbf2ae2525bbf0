"""The supervisor with a small child in place of the server; real processes and signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from memsvc.supervisor import EXIT_CONFIG, EXIT_GAVE_UP
from tests.waiting import until

PARENT = """
import json, logging, os, sys
from memsvc.supervisor import Policy, Supervisor
logging.basicConfig(level=logging.INFO)
policy = Policy(**json.loads(sys.argv[1]))
sys.exit(Supervisor([sys.executable, sys.argv[2]], env=os.environ, policy=policy).run())
"""

CHILD_HEAD = """
import os, signal, sys, threading, time
from pathlib import Path
here = Path(__file__).parent
lives = here / "lives"
with lives.open("a") as f:
    f.write(f"{os.getpid()}\\n")
life = len(lives.read_text().split())
from memsvc import heartbeat
stop = threading.Event()
def ended(number, frame):
    (here / "signals").open("a").write(signal.Signals(number).name + "\\n")
    if number == signal.SIGTERM:
        stop.set()
signal.signal(signal.SIGTERM, ended)
signal.signal(signal.SIGHUP, ended)
heartbeat.INTERVAL_S = 0.05
"""

QUICK = (
    '{"heartbeat_timeout_s": 0.8, "startup_grace_s": 5, "stop_timeout_s": 3, '
    '"backoff_first_s": 0.05, "backoff_max_s": 0.2, "max_deaths": 4}'
)


class Rig:
    """A running supervisor and the traces its children leave."""

    def __init__(self, folder: Path, child: str) -> None:
        self.folder = folder
        parent = folder / "parent.py"
        parent.write_text(PARENT)
        script = folder / "child.py"
        script.write_text(CHILD_HEAD + textwrap.dedent(child))
        self.log = (folder / "log").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, str(parent), QUICK, str(script)],
            stderr=self.log,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )

    def pids(self) -> list[int]:
        file = self.folder / "lives"
        return [int(word) for word in file.read_text().split()] if file.exists() else []

    def signals(self) -> list[str]:
        file = self.folder / "signals"
        return file.read_text().split() if file.exists() else []

    def text(self) -> str:
        return (self.folder / "log").read_text()

    def until(self, condition: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
        until(condition, seconds, lambda: f"{what}\n{self.text()}")

    def up(self, times: int = 1) -> int:
        self.until(lambda: self.text().count("server is up") >= times, f"start {times}")
        return self.pids()[-1]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Callable[[str], Rig]]:
    rigs: list[Rig] = []

    def make(child: str) -> Rig:
        rigs.append(Rig(tmp_path, child))
        return rigs[-1]

    yield make
    for one in rigs:
        one.process.kill()
        one.process.wait()
        one.log.close()
        for pid in one.pids():
            if _is_child(pid, tmp_path):
                os.kill(pid, signal.SIGKILL)


def _is_child(pid: int, folder: Path) -> bool:
    try:
        return str(folder / "child.py") in psutil.Process(pid).cmdline()
    except psutil.Error:
        return False


def _gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


WELL = """
heartbeat.start(lambda: True, grace_s=1.0)
stop.wait()
sys.exit(0)
"""


def test_a_child_killed_from_outside_comes_back(rig: Callable[[str], Rig]) -> None:
    run = rig(WELL)
    first = run.up()
    os.kill(first, signal.SIGKILL)
    second = run.up(2)
    assert first != second
    assert "signal SIGKILL" in run.text()


def test_sigterm_reaches_the_child_and_the_exit_is_clean(rig: Callable[[str], Rig]) -> None:
    run = rig(WELL)
    child = run.up()
    run.process.send_signal(signal.SIGTERM)
    assert run.process.wait(10) == 0
    assert run.signals() == ["SIGTERM"]
    assert _gone(child)


def test_a_stop_before_the_child_is_up_is_clean(rig: Callable[[str], Rig]) -> None:
    run = rig(
        """
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        (here / "begun").touch()
        time.sleep(60)
        """
    )
    run.until((run.folder / "begun").exists, "start")
    run.process.send_signal(signal.SIGTERM)
    assert run.process.wait(10) == 0


def test_interrupt_stops_gracefully_and_a_second_one_at_once(rig: Callable[[str], Rig]) -> None:
    run = rig("heartbeat.start(lambda: True)\ntime.sleep(60)\nsys.exit(0)\n")
    run.up()
    run.process.send_signal(signal.SIGINT)
    run.until(lambda: run.signals() == ["SIGTERM"], "forwarding")
    assert run.process.poll() is None
    run.process.send_signal(signal.SIGINT)
    assert run.process.wait(10) == 128 + signal.SIGKILL


def test_sighup_is_passed_on_and_nothing_restarts(rig: Callable[[str], Rig]) -> None:
    run = rig(WELL)
    run.up()
    run.process.send_signal(signal.SIGHUP)
    run.until(lambda: run.signals() == ["SIGHUP"], "reload")
    run.process.send_signal(signal.SIGTERM)
    assert run.process.wait(10) == 0
    assert run.signals() == ["SIGHUP", "SIGTERM"] and len(run.pids()) == 1


def test_sighup_while_the_child_starts_waits_until_it_listens(rig: Callable[[str], Rig]) -> None:
    """Until then the signal would end it."""
    run = rig(
        """
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        (here / "begun").touch()
        while not (here / "go").exists():
            time.sleep(0.01)
        signal.signal(signal.SIGHUP, ended)
        heartbeat.start(lambda: True)
        stop.wait()
        """
    )
    run.until((run.folder / "begun").exists, "start")
    run.process.send_signal(signal.SIGHUP)
    run.process.send_signal(signal.SIGCHLD)  # so that it has been round once more
    run.until(lambda: psutil.Process(run.process.pid).status() == "sleeping", "it waits")
    (run.folder / "go").touch()
    run.until(lambda: run.signals() == ["SIGHUP"], "reload")
    assert len(run.pids()) == 1


def test_a_stopped_child_is_found_out_and_replaced(rig: Callable[[str], Rig]) -> None:
    run = rig(WELL)
    first = run.up()
    os.kill(first, signal.SIGSTOP)
    run.up(2)
    assert "hung: no heartbeat" in run.text()
    assert _gone(first)


def test_a_child_that_is_no_longer_alive_inside_is_replaced(rig: Callable[[str], Rig]) -> None:
    run = rig(
        """
        begin = time.monotonic()
        heartbeat.start(lambda: life > 1 or time.monotonic() < begin + 0.3)
        stop.wait()
        """
    )
    run.up(2)


def test_a_slow_start_is_not_taken_for_a_hang(rig: Callable[[str], Rig]) -> None:
    run = rig(
        """
        begin = time.monotonic()
        heartbeat.start(lambda: time.monotonic() > begin + 2.0)
        stop.wait()
        """
    )
    run.up()
    assert len(run.pids()) == 1


def test_a_refused_configuration_is_not_tried_again(rig: Callable[[str], Rig]) -> None:
    run = rig(f"sys.exit({EXIT_CONFIG})")
    assert run.process.wait(10) == EXIT_CONFIG
    assert len(run.pids()) == 1


def test_a_child_that_always_dies_is_given_up(rig: Callable[[str], Rig]) -> None:
    run = rig("sys.exit(3)")
    assert run.process.wait(10) == EXIT_GAVE_UP
    assert len(run.pids()) == 4
    assert "giving up" in run.text()


def test_a_clean_exit_that_nobody_asked_for_is_restarted(rig: Callable[[str], Rig]) -> None:
    run = rig("heartbeat.start(lambda: True)\ntime.sleep(0.2)\nif life > 1: stop.wait()\n")
    run.up(2)


def test_a_child_that_ignores_sigterm_is_killed_in_the_end(rig: Callable[[str], Rig]) -> None:
    run = rig("heartbeat.start(lambda: True)\ntime.sleep(60)\n")
    child = run.up()
    run.process.send_signal(signal.SIGTERM)
    assert run.process.wait(10) == 128 + signal.SIGKILL
    assert _gone(child)


def test_the_child_ends_itself_when_the_supervisor_is_killed(rig: Callable[[str], Rig]) -> None:
    run = rig(WELL)
    child = run.up()
    run.process.kill()
    run.process.wait()
    run.until(lambda: _gone(child), "end of the orphan")
    assert run.signals() == ["SIGTERM"]  # in good order, not broken off


def test_an_orphan_that_cannot_stop_ends_hard(rig: Callable[[str], Rig]) -> None:
    run = rig("heartbeat.start(lambda: True, grace_s=0.5)\ntime.sleep(60)\ntime.sleep(60)\n")
    child = run.up()
    run.process.kill()
    run.process.wait()
    run.until(lambda: _gone(child), "end of the orphan")


def test_processes_of_a_dead_child_do_not_outlive_it(rig: Callable[[str], Rig]) -> None:
    run = rig(
        """
        import subprocess
        if life == 1:
            helper = subprocess.Popen(["sleep", "60"])
            (here / "helper").write_text(str(helper.pid))
        heartbeat.start(lambda: True)
        stop.wait()
        """
    )
    child = run.up()
    helper = int((run.folder / "helper").read_text())
    os.kill(child, signal.SIGKILL)
    run.up(2)
    run.until(lambda: _gone(helper), "end of the helper")


def test_a_stop_during_the_pause_before_a_restart_ends_it(tmp_path: Path) -> None:
    parent = tmp_path / "parent.py"
    parent.write_text(PARENT)
    child = tmp_path / "child.py"
    child.write_text("import sys; sys.exit(1)")
    process = subprocess.Popen(
        [sys.executable, str(parent), '{"backoff_first_s": 60, "backoff_max_s": 60}', str(child)],
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert process.stderr is not None
    assert "restarting in 60 s" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    process.stderr.close()


def test_the_supervisor_stays_light() -> None:
    """It must not load what it supervises: gRPC and LMDB do not survive a fork."""
    code = (
        "import sys, memsvc.supervisor; "
        "print([m for m in ('grpc', 'lmdb', 'usearch', 'numpy', 'pydantic') if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.stdout.strip() == "[]", answer.stderr


def test_without_a_supervisor_there_is_no_heartbeat() -> None:
    from memsvc import heartbeat

    assert not heartbeat.start(lambda: True, env={})
