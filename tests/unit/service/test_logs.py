"""Access lines from a thread of their own: none lost, none twice, none in the way."""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Iterator

import pytest

from memsvc.service import logs


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before = (list(root.handlers), root.level)
    stream = io.StringIO()
    logs.configure("info", "text", stream)
    yield stream
    root.handlers[:], root.level = before


def log(number: int) -> None:
    logs.access(
        request_id=f"r{number}.", call="Query", code="OK", seconds=0.1, token="t", protocol="grpc"
    )


def times(written: io.StringIO, number: int) -> int:
    return written.getvalue().count(f"request_id=r{number}.")


def test_every_line_is_written_once_however_many_threads_log(written: io.StringIO) -> None:
    writer = logs.AccessWriter()
    writer.start()

    def log_fifty(first: int) -> None:
        for number in range(first, first + 50):
            log(number)

    threads = [threading.Thread(target=log_fifty, args=(50 * t,)) for t in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.stop()
    assert [times(written, n) for n in range(300)] == [1] * 300


def test_lines_after_the_writer_has_stopped_are_written_at_once(written: io.StringIO) -> None:
    writer = logs.AccessWriter()
    writer.start()
    writer.stop()
    log(1)
    assert times(written, 1) == 1


def test_past_the_most_that_may_wait_a_call_writes_its_own_line(
    written: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "ACCESS_LINES_WAITING", 2)
    held = threading.Event()
    monkeypatch.setattr("memsvc.service.logs.time.sleep", lambda _seconds: held.wait())
    writer = logs.AccessWriter()
    writer.start()
    for number in range(6):
        log(number)
    assert times(written, 5) == 1
    held.set()
    writer.stop()
    assert [times(written, n) for n in range(6)] == [1] * 6


def test_a_level_above_info_also_silences_the_writer(written: io.StringIO) -> None:
    logs.set_level("warning")
    writer = logs.AccessWriter()
    writer.start()
    log(1)
    writer.stop()
    assert written.getvalue() == ""
