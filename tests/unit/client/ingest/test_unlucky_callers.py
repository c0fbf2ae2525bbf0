"""Callers that are hostile or unlucky: what they give is taken whole, or refused by name."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memsvc.client import MemoryClient
from memsvc.client.ingest import Ingestor, IngestSettings, Turn, Windowing
from memsvc.client.ingest.checks import MAX_CHARACTERS, MAX_SEQ, check
from memsvc.client.ingest.chunks import Chunk
from memsvc.client.ingest.outbox import Outbox
from memsvc.domain.types import Namespace
from tests.ports import free_port

ALONE = IngestSettings(windows=Windowing(turns=1, stride=1), retries=0, pause_s=600.0)
SPACE = "acme/bot"


@pytest.fixture
def nobody() -> Iterator[MemoryClient]:
    with MemoryClient(f"127.0.0.1:{free_port()}") as client:
        yield client


def turn(number: int, **more: Any) -> Turn:
    return Turn(f"Fact {number} is new.", **{"session": "s", "seq": number, **more})


def chunks_in(path: Path) -> list[Chunk]:
    outbox = Outbox(path, SPACE)
    try:
        return [one.chunk for one in outbox.first(1_000)]
    finally:
        outbox.close()


def test_who_waits_for_room_has_nothing_dropped_also_by_one_large_call(
    nobody: MemoryClient,
) -> None:
    settings = replace(ALONE, max_pending=3, when_full="wait")
    with Ingestor(nobody, SPACE, None, spill=None, settings=settings) as ingest:
        ingest.add(*(turn(number) for number in range(20)))
        assert (ingest.report().dropped, ingest.report().pending) == (0, 20)


@pytest.mark.parametrize("session", ["", "s"])
def test_turns_of_two_sources_are_not_in_one_memory(
    nobody: MemoryClient, tmp_path: Path, session: str
) -> None:
    spill = tmp_path / "spill"
    with Ingestor(
        nobody, SPACE, None, spill=spill, settings=IngestSettings(retries=0, pause_s=600.0)
    ) as ingest:
        for number in range(7):
            ingest.add(turn(number, session=session, source="ab"[number % 2]))
    found = chunks_in(spill)
    for chunk in found:
        numbers = [int(line.split()[1]) for line in chunk.content.split("\n")]
        assert {"ab"[number % 2] for number in numbers} == {chunk.source}
        assert (chunk.seq, chunk.last_seq) == (numbers[0], numbers[-1])
    assert {n for n in range(7) if any(f"Fact {n} " in c.content for c in found)} == set(range(7))


def test_the_same_words_of_two_sources_at_one_place_are_both_kept(
    nobody: MemoryClient, tmp_path: Path
) -> None:
    spill = tmp_path / "spill"
    with Ingestor(nobody, SPACE, None, spill=spill, settings=IngestSettings(retries=0)) as ingest:
        ingest.add(Turn("Hello.", source="a", seq=0), Turn("Hello.", source="b", seq=0))
    assert [chunk.source for chunk in chunks_in(spill)] == ["a", "b"]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"text": None}, "text: expected str, not NoneType"),
        ({"text": b"abc"}, "text: expected str, not bytes"),
        ({"role": None}, "role: expected str, not NoneType"),
        ({"session": 7}, "session: expected str, not int"),
        ({"ts": 1.5}, "ts: expected int or None, not float"),
        ({"ts": "now"}, "ts: expected int or None, not str"),
        ({"seq": True}, "seq: expected int or None, not bool"),
        ({"importance": "high"}, "importance: expected float or int or None, not str"),
        ({"attributes": {"a": None}}, "attributes.a: expected str or bool or int or float or tup"),
        ({"attributes": {"a": ("b", 1)}}, "attributes.a: a member: expected str, not int"),
        ({"attributes": {1: "b"}}, "attributes: a name: expected str, not int"),
    ],
)
def test_a_value_of_another_type_is_refused_at_once_and_blocks_no_queue(
    nobody: MemoryClient, wrong: dict[str, Any], told: str
) -> None:
    given: dict[str, Any] = {"text": "Good to know.", "session": "s", **wrong}
    with Ingestor(nobody, SPACE, None, spill=None, settings=ALONE) as ingest:
        for add in (ingest.add, ingest.add_text):
            with pytest.raises(TypeError) as caught:
                add(Turn(**given))
            assert str(caught.value).startswith(told)
        assert ingest.report().pending == 0


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"text": "half of \ud83d one"}, "text: half of a character .* at place 8"),
        ({"speaker": "\ud800"}, "speaker: half of a character"),
        ({"text": "x" * (MAX_CHARACTERS + 1)}, "text: expected at most 10,000,000 characters"),
        ({"seq": MAX_SEQ + 1}, "seq: expected 0 to"),
    ],
)
def test_what_no_store_can_hold_is_told_in_plain_words(
    nobody: MemoryClient, wrong: dict[str, Any], told: str
) -> None:
    with (
        Ingestor(nobody, SPACE, None, spill=None, settings=ALONE) as ingest,
        pytest.raises(ValueError, match=told),
    ):
        ingest.add(Turn(**{"text": "x", "session": "s", **wrong}))


def test_what_just_fits_is_taken() -> None:
    for just in ({"text": "x" * MAX_CHARACTERS}, {"seq": MAX_SEQ}, {"seq": 0}):
        check(Namespace("acme", "bot"), "s", Turn(**{"text": "x", **just}))


def test_counting_goes_on_behind_the_greatest_number(nobody: MemoryClient, tmp_path: Path) -> None:
    spill = tmp_path / "spill"
    with Ingestor(nobody, SPACE, None, spill=spill, settings=ALONE) as ingest:
        ingest.add(turn(0, seq=MAX_SEQ), turn(1, seq=None))
    assert [chunk.seq for chunk in chunks_in(spill)] == [MAX_SEQ, MAX_SEQ + 1]


def test_the_last_day_of_the_calendar_is_one_everywhere(
    nobody: MemoryClient, tmp_path: Path
) -> None:
    spill, settings = tmp_path / "spill", replace(ALONE, time_zone="Pacific/Kiritimati")
    with Ingestor(nobody, SPACE, None, spill=spill, settings=settings) as ingest:
        ingest.add(turn(0, ts=253_402_300_799_999))
    assert [chunk.summary for chunk in chunks_in(spill)] == ["Fact 0 is new."]


def test_an_interrupted_call_takes_nothing_and_given_again_is_taken_whole(
    nobody: MemoryClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spill = tmp_path / "spill"
    with Ingestor(nobody, SPACE, None, spill=spill, settings=ALONE) as ingest:
        put = Outbox.put

        def interrupted(*given: Any) -> int:
            raise KeyboardInterrupt

        monkeypatch.setattr(Outbox, "put", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ingest.add(*(turn(number) for number in range(3)))
        monkeypatch.setattr(Outbox, "put", put)
        assert ingest.report().pending == 0
        ingest.add(*(turn(number) for number in range(3)))
    assert [chunk.seq for chunk in chunks_in(spill)] == [0, 1, 2]


FORKING = """
import os, sys
from memsvc.client import MemoryClient
from memsvc.client.ingest import Ingestor, IngestSettings, Turn, Windowing

alone = IngestSettings(windows=Windowing(turns=1, stride=1), retries=0, pause_s=600.0)
ingest = Ingestor(MemoryClient(sys.argv[2]), "acme/bot", None, spill=sys.argv[1], settings=alone)
ingest.add(Turn("Fact 0 is new.", session="s", seq=0))
child = os.fork()
if not child:
    refused = 0
    for call in (lambda: ingest.add(Turn("Fact 1 is new.", seq=1)), ingest.flush, ingest.let_go):
        try:
            call()
        except RuntimeError as error:
            refused += "forked" in str(error)
    ingest.close()
    os._exit(refused)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 3, status
ingest.add(Turn("Fact 2 is new.", session="s", seq=2))
os._exit(0)  # as a kill would end it
"""


def test_a_forked_child_leaves_the_file_of_its_parent_alone(tmp_path: Path) -> None:
    """A child that wrote and closed took the write-ahead log away: what the parent was given
    afterwards was lost when it was killed."""
    spill = tmp_path / "spill"
    subprocess.run(
        [sys.executable, "-c", FORKING, str(spill), f"127.0.0.1:{free_port()}"],
        check=True,
        timeout=120,
    )
    assert [chunk.seq for chunk in chunks_in(spill)] == [0, 2]


def test_closing_from_many_threads_closes_once_and_all_get_the_report(
    nobody: MemoryClient,
) -> None:
    ingest = Ingestor(nobody, SPACE, None, spill=None, settings=ALONE)
    ingest.add(turn(0))
    with ThreadPoolExecutor(8) as threads:
        reports = list(threads.map(lambda _: ingest.close(), range(8)))
    assert {report.pending for report in reports} == {1}


def test_who_flushes_while_it_is_closed_gets_a_report_and_no_damaged_file(
    nobody: MemoryClient, tmp_path: Path
) -> None:
    ingest = Ingestor(nobody, SPACE, None, spill=tmp_path / "spill", settings=ALONE)
    ingest.add(turn(0))
    flushed: list[int] = []

    def flush() -> None:
        try:
            flushed.append(ingest.flush(60).pending)
        except RuntimeError as error:
            assert str(error) == "the ingestor is closed"
            flushed.append(1)

    threads = [threading.Thread(target=flush) for _ in range(8)]
    for thread in threads:
        thread.start()
    ingest.close()
    for thread in threads:
        thread.join(60)
    assert flushed == [1] * 8


def test_a_report_waits_for_no_disk(nobody: MemoryClient) -> None:
    with Ingestor(nobody, SPACE, None, spill=None, settings=ALONE) as ingest:
        ingest.add(turn(0))
        with ingest._changed:  # as while a write to a stalled disk is under way
            reports: list[int] = []
            asking = threading.Thread(target=lambda: reports.append(ingest.report().pending))
            asking.start()
            asking.join(60)
        assert reports == [1]
