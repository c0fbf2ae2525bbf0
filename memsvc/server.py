"""The serving process: one node behind gRPC and HTTP.

``memsvc serve`` runs it under the supervisor; it can also be run alone, with
``python -m memsvc.server --config FILE``. Exit status 78 means that the configuration or
the start-up check is at fault and starting again would not help.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import resource
import select
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from memsvc import heartbeat, pinning  # noqa: F401  (pinning: for its effect on numpy)
from memsvc.config import load
from memsvc.config.loading import ConfigError
from memsvc.domain.errors import FailedPrecondition
from memsvc.readers.early import EarlyReaders
from memsvc.service import allocator, logs
from memsvc.service.cores import readers_of

if TYPE_CHECKING:
    from memsvc.serving import Server

log = logging.getLogger("memsvc.server")

EXIT_CONFIG: Final = 78
EXIT_AGAIN: Final = 75
"""The supervisor is to start the process again."""
HEARTBEAT_MARGIN_S: Final = 5.0
"""For closing the store, beyond the time that calls get to finish."""
SWITCH_INTERVAL_S: Final = 0.0001
"""How long a busy Python thread may hold the others up (default 5 ms): it is what the
slowest answers wait for."""


def _raise_open_files() -> None:
    """A segment holds up to seven file descriptors; the usual soft limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _overrides(pairs: Sequence[str]) -> Mapping[str, object]:
    found: dict[str, object] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator:
            raise ConfigError([f"--set {pair}: expected KEY=VALUE"])
        found[key] = value
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs until SIGTERM or SIGINT; SIGHUP reloads. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m memsvc.server", description=__doc__)
    parser.add_argument("--config", type=Path, help="YAML file with settings")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="one setting; wins over file and environment",
    )
    options = parser.parse_args(arguments)
    try:
        overrides = _overrides(options.set)
        effective = load(options.config, os.environ, overrides)
    except ConfigError as error:
        print(f"memsvc: {error}", file=sys.stderr)  # noqa: T201  (no log yet)
        return EXIT_CONFIG
    settings = effective.settings
    logs.configure(settings.log.level, settings.log.format)
    for key, note in effective.notes.items():
        log.warning("%s: %s", key, note)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    allocator.tune()
    _raise_open_files()
    signals = _Signals()
    access_lines = logs.AccessWriter()
    with EarlyReaders(readers_of(settings), settings.storage.data_dir) as readers:
        # Not before: to import this takes two thirds of a start, and the readers' own imports as
        # long, at the same time.
        from memsvc.serving import REFUSALS, Server, make_ready

        try:
            with signals.ending_at_once():
                make_ready(settings)
            server = Server(effective, options.config, overrides, readers)
            access_lines.start()
            server.start(lambda: signals.end)
        except REFUSALS as error:
            hint = getattr(error, "hint", "")
            log.error("cannot start: %s%s", error, f" ({hint})" if hint else "")
            return EXIT_CONFIG
    grace_s = settings.server.graceful_shutdown_ms / 1_000 + HEARTBEAT_MARGIN_S
    allocator.settle()
    heartbeat.start(lambda: server.alive, grace_s=grace_s)
    signals.wait(server)
    server.stop()
    access_lines.stop()
    return EXIT_AGAIN if server.restart.is_set() else 0


class _Signals:
    """SIGTERM and SIGINT end the process in good order, SIGHUP reloads.

    Woken through a pipe: a signal that the kernel hands to another thread would not wake a
    main thread that waits for a lock.
    """

    def __init__(self) -> None:
        self._read, write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self.end = False
        """Whether the process was told to end."""
        self._at_once = False
        self._reload = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._handle)

    def _handle(self, number: int, _frame: object) -> None:
        if number == signal.SIGHUP:
            self._reload = True
        else:
            self.end = True
            if self._at_once:
                raise SystemExit(0)

    @contextlib.contextmanager
    def ending_at_once(self) -> Iterator[None]:
        """What is done within may be broken off anywhere: SIGTERM and SIGINT do."""
        self._at_once = True
        try:
            if self.end:
                raise SystemExit(0)
            yield
        finally:
            self._at_once = False

    def wait(self, server: Server) -> None:
        while not self.end:
            select.select([self._read], [], [])
            with contextlib.suppress(BlockingIOError):
                os.read(self._read, 512)
            if self._reload:
                self._reload = False
                try:
                    server.reload()
                except FailedPrecondition as error:
                    log.error("not reloaded: %s", error)
                except Exception:  # a server that runs must not end by a reload
                    log.exception("not reloaded")


if __name__ == "__main__":
    sys.exit(main())
