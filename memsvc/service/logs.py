"""Log output: JSON lines for collectors or plain lines for people, and the access line.

Texts of memories, vectors and tokens are never passed to a logger anywhere; what is logged
of a call is its id, name, outcome, duration and the *name* of the token.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import sys
import threading
import time
from queue import SimpleQueue
from typing import Any, Final, TextIO

from memsvc.domain.errors import MemsvcError

ACCESS_LOGGER: Final = "memsvc.access"
ACCESS_LINES_WAITING: Final = 10_000
"""Lines that may wait to be written; past it calls write their own."""
ACCESS_DELAY_S: Final = 0.02
"""How long a line waits, so that the call it tells of is answered first."""
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:\-]{1,128}\Z")
_access = logging.getLogger(ACCESS_LOGGER)


def request_id(given: str | None) -> str:
    """The caller's id of a request when it is fit for a log line, else a new one."""
    if given and _REQUEST_ID.match(given):
        return given
    return secrets.token_hex(8)


def access(
    *, request_id: str, call: str, code: str, seconds: float, token: str, protocol: str
) -> None:
    """Writes the one line of a finished call. ``token`` is the name of the token."""
    if not _access.isEnabledFor(logging.INFO):
        return
    record = logging.LogRecord(_access.name, logging.INFO, "", 0, "%s %s", (call, code), None)
    record.fields = {
        "request_id": request_id,
        "call": call,
        "code": code,
        "ms": round(seconds * 1_000, 3),
        "token": token,
        "protocol": protocol,
    }
    _access.handle(record)


class AccessWriter(logging.Handler):
    """Passes access lines on to the handlers of the root a moment later, from a thread of its
    own, while it is started: to put one together and write it takes a twentieth of a query.
    A process that is killed loses those of the last moment. All other messages are written at
    once."""

    def __init__(self) -> None:
        super().__init__()
        self._records: SimpleQueue[logging.LogRecord | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="memsvc-access-log", daemon=True)

    def start(self) -> None:
        """From now on access lines come here."""
        self._thread.start()
        _access.addHandler(self)
        _access.propagate = False

    def stop(self) -> None:
        """Writes what is left; further lines are written at once again."""
        _access.propagate = True
        _access.removeHandler(self)
        self._records.put(None)
        self._thread.join()

    def emit(self, record: logging.LogRecord) -> None:
        """Takes a line; when too many wait, whoever logs writes it and so waits too."""
        if self._records.qsize() < ACCESS_LINES_WAITING:
            self._records.put(record)
        else:
            logging.getLogger().handle(record)

    def createLock(self) -> None:
        """None is needed, and none is to be waited for."""
        self.lock = None

    def _write(self) -> None:
        root = logging.getLogger()
        while (record := self._records.get()) is not None:
            # The call is still being answered; its line can wait until that is done.
            time.sleep(ACCESS_DELAY_S)
            root.handle(record)
            for _ in range(self._records.qsize()):
                record = self._records.get()
                if record is None:
                    return
                root.handle(record)


class JsonFormatter(logging.Formatter):
    """One JSON object a line; a message cannot forge a second line."""

    def format(self, record: logging.LogRecord) -> str:
        """Time is UTC in ISO 8601 with milliseconds."""
        entry: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry.update(getattr(record, "fields", {}))
        if record.exc_info:
            entry["traceback"] = _traceback(self, record)
        return json.dumps(entry, default=str)


class TextFormatter(logging.Formatter):
    """For people: time, level, logger, message, fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Control characters of the message are escaped."""
        message = record.getMessage()
        if not message.isprintable():
            message = "".join(ch if ch.isprintable() else ascii(ch)[1:-1] for ch in message)
        line = f"{_time(record)} {record.levelname:<7} {record.name}: {message}"
        fields: dict[str, Any] = getattr(record, "fields", {})
        if fields:
            line += " " + " ".join(f"{key}={value}" for key, value in fields.items())
        if record.exc_info:
            line += "\n" + _traceback(self, record)
        return line


def _time(record: logging.LogRecord) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{whole}.{int(record.msecs):03d}Z"


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    assert record.exc_info
    text = formatter.formatException(record.exc_info)
    if isinstance(record.exc_info[1], MemsvcError):
        return text
    # The last line of a traceback is the exception's text, and exceptions of libraries like
    # to quote values: a decoder quotes the memory it could not decode.
    lines = text.splitlines()
    return "\n".join(_without_values(line) for line in lines)


_EXCEPTION_LINE = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Warning|Exit|Interrupt))(:.*)?$")


def _without_values(line: str) -> str:
    match = _EXCEPTION_LINE.match(line)
    if not match or not match.group(2):
        return line
    text = match.group(2)
    quoted = re.sub(r"'[^']*'|\"[^\"]*\"", "'…'", text)
    return match.group(1) + (quoted if len(quoted) <= 300 else quoted[:300] + "…")


def configure(level: str, style: str, stream: TextIO | None = None) -> logging.Handler:
    """Sends all logging to ``stream`` (standard error) and returns the handler.

    ``level`` is debug, info, warning or error; ``style`` is json or text.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    set_level(level)
    return handler


def set_level(level: str) -> None:
    """Changes the least severe level that is written."""
    number = getattr(logging, level.upper())
    logging.getLogger().setLevel(number)
    # These tell of every request or connection at debug and info, with addresses and bodies.
    for noisy in ("uvicorn", "asyncio", "grpc", "urllib3", "httpx"):
        logging.getLogger(noisy).setLevel(max(number, logging.WARNING))
