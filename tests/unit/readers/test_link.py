"""The serving process's end of the pipes to its readers."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from memsvc.readers.child import Child
from memsvc.readers.link import WAITING_BYTES, Lines, LinkBroken, Queue

READER = """
import json, sys, time
time.sleep(float(sys.argv[1]))
told = sys.stdin.readline()
print(json.dumps({"ready": len(told)}), flush=True)
for line in sys.stdin:
    print(json.dumps({"done": json.loads(line)["id"], "samples": None}), flush=True)
"""


@pytest.fixture
def pipe() -> Iterator[tuple[int, Queue]]:
    """The end that is read, and the queue before the other."""
    read, write = os.pipe()
    queue = Queue(os.fdopen(write, "wb", buffering=0))
    yield read, queue
    queue.close()
    os.close(read)


def test_a_message_larger_than_the_pipe_waits_and_holds_nobody_up(pipe: tuple[int, Queue]) -> None:
    read, queue = pipe
    messages: list[dict[str, Any]] = [{"start": "x" * (3 << 20)}, {"do": "stand"}, {"do": "stop"}]
    for message in messages:
        queue.send(message)
    assert queue.waits
    lines, found = Lines(), []
    while len(found) < len(messages):
        found += lines.feed(os.read(read, 1 << 20))
        queue.flush()
    assert found == messages and not queue.waits


def test_what_nobody_reads_does_not_grow_for_ever(pipe: tuple[int, Queue]) -> None:
    _, queue = pipe
    with pytest.raises(LinkBroken):
        for _ in range(WAITING_BYTES // (8 << 20) + 2):
            queue.send({"start": "x" * (8 << 20)})


def test_a_message_to_a_reader_that_has_ended_goes_into_no_other_file(
    pipe: tuple[int, Queue], tmp_path: Path
) -> None:
    """The number of a closed pipe is that of the next file that is opened."""
    _, queue = pipe
    before = queue._pipe.fileno()
    queue.close()
    with (tmp_path / "segment").open("wb") as file:
        assert file.fileno() == before
        queue.send({"do": "settled", "for": 1})
        queue.flush()
    assert not (tmp_path / "segment").read_bytes()


def _reader(wait: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", READER, str(wait)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    )


def test_a_reader_is_told_more_than_its_pipe_holds_before_it_reads() -> None:
    """Settings of thousands of namespaces, on a machine where importing takes seconds."""
    told, heard = {"settings": "x" * (4 << 20)}, []
    child = Child(_reader(0.3), told, lambda _, message: heard.append(message))
    thread = threading.Thread(target=child.run)
    thread.start()
    asked = child.ask({"do": "samples"})
    assert asked.result(timeout=30) == {"done": 1, "samples": None}
    assert heard == [{"ready": len(json.dumps({"start": told})) + 1}]
    child.kill()
    thread.join(30)
    assert not thread.is_alive()
    child.send({"do": "stop"})


def test_a_reader_is_replaced_by_a_node_with_more_than_a_thousand_open_files() -> None:
    """Each segment has up to seven: select() takes none above 1,023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4_096:
        pytest.fail("a hard limit of open files of 4,096 is needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4_096), hard))
    try:
        with ExitStack() as files:
            for _ in range(1_100):
                files.enter_context(open(os.devnull, "rb"))
            heard: list[dict[str, Any]] = []
            child = Child(_reader(0), {"settings": "x"}, lambda _, message: heard.append(message))
            codes: list[int] = []
            thread = threading.Thread(target=lambda: codes.append(child.run()))
            thread.start()
            assert child.ask({"do": "samples"}).result(timeout=30)
            child.kill()
            thread.join(30)
            assert codes == [-9] and child.ready
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
