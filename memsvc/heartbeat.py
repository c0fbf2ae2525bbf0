"""The serving process's side of the pipe to its supervisor.

The supervisor passes the write end of a pipe, its number in ``HEARTBEAT_FD_OF_MEMSVC``. Each
second in which the process is well, one line goes into it. A process that stopped, deadlocked
or lost its threads writes nothing, which the supervisor notices where looking at the port or
the pid would not. The other way round the pipe tells that the supervisor is gone: then nobody
would restart or stop this process, so it ends itself.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

# Not MEMSVC_something: those are settings, and unknown ones are refused.
FD_VARIABLE: Final = "HEARTBEAT_FD_OF_MEMSVC"
INTERVAL_S: Final = 1.0
LINE: Final = b"ok\n"
EXIT_ORPHANED: Final = 70

_log = logging.getLogger("memsvc.heartbeat")


def start(
    alive: Callable[[], bool],
    *,
    grace_s: float = 35.0,
    env: Mapping[str, str] = os.environ,
) -> bool:
    """Starts the heartbeat in a daemon thread; False when there is no supervisor.

    ``alive`` is asked every second and may block (that counts as not being alive). False
    means: not serving yet, or stuck. The first True ends the start-up time that the
    supervisor allows; after it 15 s without a True mean kill and restart, so it should stay
    True while the process shuts down in good order.

    When the supervisor dies the process gets a SIGTERM from itself, and ends hard when it is
    still there after ``grace_s`` seconds.
    """
    number = env.get(FD_VARIABLE, "")
    if not number.isdigit():
        return False
    fd = int(number)
    # Processes started by this one must not keep the pipe open, and a full pipe (of a
    # supervisor that is stopped) must not block.
    os.set_inheritable(fd, False)
    os.set_blocking(fd, False)
    # Two threads: a question that hangs must not hide that the supervisor is gone.
    threading.Thread(target=_beat, args=(fd, alive), name="heartbeat", daemon=True).start()
    threading.Thread(
        target=_watch, args=(fd, grace_s), name="supervisor-watch", daemon=True
    ).start()
    return True


def _beat(fd: int, alive: Callable[[], bool]) -> None:
    failing = False
    while True:
        try:
            well = alive()
            failing = False
        except Exception:
            if not failing:  # told once, not every second
                _log.exception("the check of liveness failed")
            well, failing = False, True
        if well:
            # Full: the supervisor has not read for a day. Gone: _watch sees it.
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                os.write(fd, LINE)
        time.sleep(INTERVAL_S)


def _watch(fd: int, grace_s: float) -> None:
    poller = select.poll()
    poller.register(fd, 0)  # errors and hang-ups are always told
    while not poller.poll():
        pass
    _log.error("the supervisor is gone; stopping")
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace_s)
    _log.error("still here %.0f s later; ending at once", grace_s)
    os._exit(EXIT_ORPHANED)
