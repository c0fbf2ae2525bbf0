"""The node's side of a builder process: start it, give it a job, wait, start it again."""

from __future__ import annotations

import json
import logging
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memsvc import children, pinning

log = logging.getLogger(__name__)


class BuilderFailed(Exception):
    """The job did not succeed; it may be tried again."""


class Builder:
    """One builder process, started when it is first needed. One job at a time.

    For a job that has time the process runs only while nobody else wants the processor
    (SCHED_IDLE, see sched(7)): at the lowest niceness a query that wakes up may still wait some
    milliseconds for it. Without privileges a process cannot leave that class again, so one is
    started anew for the other kind of job.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._stopped = False
        self._idle = False

    def run(
        self,
        job: dict[str, Any],
        progress: Callable[[float], None] = lambda _share: None,
        *,
        idle: bool = False,
    ) -> Any:
        """Carries out a job and returns what it made; ``idle`` when it has time. Raises
        BuilderFailed, also when the process dies or is stopped."""
        process = self._started(idle)
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                message = json.loads(line)
                if "done" in message:
                    return message["done"]
                if "error" in message:
                    raise BuilderFailed(message["error"])
                if "progress" in message:
                    progress(message["progress"])
        except OSError as error:
            raise BuilderFailed(f"the builder died: {error}") from error
        raise BuilderFailed(f"the builder died ({children.described(process.wait())})")

    def rest(self) -> None:
        """Ends the process between two jobs; the next job starts another."""
        with self._lock:
            if self._process is not None:
                self._process.kill()
                self._process.wait()

    def stop(self) -> None:
        """Ends the process at once; what it was building is left as a .tmp folder."""
        with self._lock:
            self._stopped = True
            if self._process is not None:
                self._process.kill()
                self._process.wait()

    def break_off(self) -> None:
        """Ends the job that runs, which raises BuilderFailed; the next job starts a process
        anew."""
        with self._lock:
            if self._process is not None:
                self._process.kill()
                self._process.wait()

    def _started(self, idle: bool) -> subprocess.Popen[str]:
        with self._lock:
            if self._stopped:
                raise BuilderFailed("the node is shutting down")
            if self._process is not None and self._idle != idle:
                self._process.kill()
                self._process.wait()
            self._idle = idle
            if self._process is None or self._process.poll() is not None:
                self._process = subprocess.Popen(
                    children.command(
                        "memsvc.service.builder_process",
                        str(self._data_dir),
                        *(["idle"] if idle else []),
                    ),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=pinning.environment(),
                    # Ctrl-C is for the node, which ends its builders itself.
                    process_group=0,
                )
                log.info("builder started, pid %d", self._process.pid)
            return self._process
