"""Keeps one serving process running, and ends with it.

This process imports nothing heavy and does nothing but watch, so that it outlives what it
watches: it starts the server by exec (never fork after gRPC, LMDB or usearch were imported),
forwards signals, restarts what died, and kills what hangs. It judges by heartbeats (see
memsvc/heartbeat.py), not by the pid or the port: a stopped process keeps both. A service manager
that asked for it is told (memsvc/notify.py): ready with the first heartbeat.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from memsvc import children, notify
from memsvc.domain.backoff import backoff_s
from memsvc.heartbeat import FD_VARIABLE

_log = logging.getLogger("memsvc.supervisor")

EXIT_CONFIG: Final = 78
"""The child refuses its configuration or its start-up check failed: restarting is no use."""
EXIT_GAVE_UP: Final = 70
"""The child kept dying."""

# One BLAS thread each: two threads in several processes fight over the cores, and the exact
# scans of a serving process get slower, not faster. What the environment already says wins.
PINNED: Final = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "BLIS_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
}

_TICK_S: Final = 1.0
# A pause of this process that long was one of the whole container or machine: the child could
# not have answered either, and its silence proves nothing.
_OVERSLEPT_S: Final = 5.0

_STOPS = (signal.SIGTERM, signal.SIGINT)
_HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)


@dataclass(frozen=True, slots=True)
class Policy:
    """When to wait, kill and give up. Times in seconds."""

    heartbeat_timeout_s: float = 15.0
    """Silence after which a child that once answered is killed."""
    startup_grace_s: float = 600.0
    """Time to the first heartbeat: opening a large store checks its files first."""
    stop_timeout_s: float = 660.0
    """Time to end after SIGTERM; above the largest server.graceful_shutdown_ms."""
    backoff_first_s: float = 0.5
    backoff_max_s: float = 30.0
    settled_s: float = 60.0
    """A child that lived this long starts the count of deaths and the backoff anew."""
    max_deaths: int = 10
    """Deaths in a row, each before a child had settled, after which to give up."""


@dataclass(slots=True)
class _Child:
    pid: int
    pipe: int
    started: float
    heard: float | None = None
    killed_because: str = ""
    reload: bool = False
    """Whether it is to reload once it is up: until it listens to the signal, that ends it."""

    def shift(self, seconds: float) -> None:
        """Forgives a time in which nobody could act."""
        self.started += seconds
        if self.heard is not None:
            self.heard += seconds


class Supervisor:
    """Runs ``command`` until it is told to stop. Use once, from the main thread."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        policy: Policy | None = None,
    ) -> None:
        """``env`` is the environment of this process. The child gets it with the pinning and
        the pipe, and without the address of the service manager, which listens to this process."""
        self._command = list(command)
        self._manager = notify.Manager(env)
        self._env = {**PINNED, **env}
        self._env.pop(notify.VARIABLE, None)
        self._policy = policy or Policy()
        self._signals: list[int] = []
        self._stopping_since: float | None = None
        self._deaths = 0
        self._wake_read, self._wake_write = os.pipe()

    def run(self) -> int:
        """The exit code: 0 after a requested stop, the child's own after a stop that went
        wrong, EXIT_CONFIG, or EXIT_GAVE_UP."""
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        old_fd = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        old = {number: signal.signal(number, self._note) for number in _HANDLED}
        try:
            return self._run()
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(old_fd)
            os.close(self._wake_read)
            os.close(self._wake_write)

    def _note(self, number: int, _frame: object) -> None:
        self._signals.append(number)

    def _run(self) -> int:
        while True:
            child = self._start()
            try:
                code = self._watch(child)
            finally:
                os.close(child.pipe)
            lived = time.monotonic() - child.started
            cause = child.killed_because or children.described(code)
            self._take_signals(None)
            if self._stopping_since is not None:
                _log.info("stopped (%s)", cause)
                return _exit_code(code, child)
            if code == EXIT_CONFIG:
                _log.error("the server refuses its configuration or store; not restarting")
                return EXIT_CONFIG
            self._deaths = 1 if lived >= self._policy.settled_s else self._deaths + 1
            if self._deaths >= self._policy.max_deaths:
                _log.error("server ended (%s) %d times in a row; giving up", cause, self._deaths)
                return EXIT_GAVE_UP
            policy = self._policy
            delay = backoff_s(self._deaths, policy.backoff_first_s, policy.backoff_max_s)
            _log.error("server ended (%s); restarting in %g s", cause, delay)
            self._manager.tell(status=f"server ended ({cause}); restarting")
            if self._pause(delay):
                _log.info("stopped")
                return 0

    def _start(self) -> _Child:
        read, write = os.pipe()
        try:
            process = subprocess.Popen(
                self._command,
                env={**self._env, FD_VARIABLE: str(write)},
                pass_fds=(write,),
                # A group of its own: Ctrl-C reaches the child once, through this process, and
                # what the child started can be ended together with it.
                process_group=0,
            )
        except BaseException:
            os.close(read)
            raise
        finally:
            os.close(write)
        os.set_blocking(read, False)
        process.returncode = 0  # this class reaps it; silences the warning of Popen
        return _Child(process.pid, read, time.monotonic())

    def _watch(self, child: _Child) -> int:
        """Until the child is dead and reaped; its code, negative for a signal."""
        pipe_open = True
        last = time.monotonic()
        while True:
            self._take_signals(child)
            waiting = [self._wake_read, *([child.pipe] if pipe_open else [])]
            readable, _, _ = select.select(waiting, [], [], _TICK_S)
            now = time.monotonic()
            if now - last > _OVERSLEPT_S:
                child.shift(now - last)
            last = now
            if self._wake_read in readable:
                _drain(self._wake_read)
            if child.pipe in readable:
                data = _drain(child.pipe)
                pipe_open = data is not None
                if data:
                    if child.heard is None:
                        _log.info("server is up, pid %d", child.pid)
                        self._manager.tell(notify.READY, status=f"serving, pid {child.pid}")
                        if child.reload:
                            _send(child.pid, signal.SIGHUP)
                    child.heard = now
            code = _reap(child.pid)
            if code is not None:
                return code
            self._judge(child, now)

    def _take_signals(self, child: _Child | None) -> None:
        while self._signals:
            number = self._signals.pop(0)
            if number == signal.SIGHUP and child is not None:
                if child.heard is None:
                    child.reload = True
                else:
                    _send(child.pid, signal.SIGHUP)
            elif number in _STOPS and self._stopping_since is None:
                self._stopping_since = time.monotonic()
                if child is not None:
                    _log.info("stopping; running calls may finish")
                    self._manager.tell(notify.STOPPING, status="running calls may finish")
                    _send(child.pid, signal.SIGTERM)
            elif number == signal.SIGINT and child is not None:
                # A person at a terminal who presses Ctrl-C again does not want to wait.
                self._kill(child, "killed by a second interrupt")

    def _judge(self, child: _Child, now: float) -> None:
        if child.killed_because:
            return
        policy = self._policy
        if child.heard is None:
            deadline, cause = child.started + policy.startup_grace_s, "was not up in time"
        else:
            deadline, cause = child.heard + policy.heartbeat_timeout_s, "hung: no heartbeat"
        if self._stopping_since is not None:
            stop_by = self._stopping_since + policy.stop_timeout_s
            deadline, cause = min((deadline, cause), (stop_by, "did not stop in time"))
        if now >= deadline:
            _log.error("server pid %d %s; killing it", child.pid, cause)
            self._kill(child, cause)

    def _kill(self, child: _Child, cause: str) -> None:
        child.killed_because = cause
        _send_group(child.pid, signal.SIGKILL)

    def _pause(self, seconds: float) -> bool:
        """Waits before a restart; True when a stop was asked for meanwhile."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            select.select([self._wake_read], [], [], left)
            _drain(self._wake_read)
            self._take_signals(None)
            if self._stopping_since is not None:
                return True
        return False


def _reap(pid: int) -> int | None:
    """Exit code of the child, negative for a signal; None while it lives.

    What it had started is killed before its number is given back to the system: a builder of a
    dead server must not write beside that of the next. Orphans that fall to this process when
    it is the first of a container are reaped along the way.
    """
    if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        with contextlib.suppress(ChildProcessError):
            while (other := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and (
                other.si_pid != pid
            ):
                os.waitpid(other.si_pid, 0)
        return None
    _send_group(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _send_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _drain(fd: int) -> bytes | None:
    """What is in a pipe; b"" = nothing now, None = closed at the other end."""
    try:
        return os.read(fd, 65_536) or None
    except BlockingIOError:
        return b""


def _exit_code(code: int, child: _Child) -> int:
    """Of this process after a requested stop: 0 when the child ended as it should."""
    if code == -signal.SIGTERM and child.heard is None:
        return 0  # it was told to stop before it had begun to listen to signals
    return code if code >= 0 else 128 - code
