"""The ingestor where nobody answers: what is taken, refused, dropped and kept."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from memsvc.client import HashingEmbedder, MemoryClient
from memsvc.client.ingest import (
    Ingestor,
    IngestSettings,
    SpillError,
    Turn,
    Windowing,
    ingestor,
)
from memsvc.client.ingest.importance import PREFERENCE
from memsvc.client.ingest.outbox import Outbox
from tests.ports import free_port

ALONE = IngestSettings(windows=Windowing(turns=1, stride=1), retries=0, pause_s=600.0)


@pytest.fixture
def nobody() -> Iterator[MemoryClient]:
    with MemoryClient(f"127.0.0.1:{free_port()}") as client:
        yield client


def turn(number: int, importance: float | None = None, **more: Any) -> Turn:
    return Turn(f"Fact {number} is new.", session="s", seq=number, importance=importance, **more)


def waiting(path: Path) -> list[str]:
    outbox = Outbox(path, "acme/bot")
    try:
        return [one.chunk.content for one in outbox.first(1_000)]
    finally:
        outbox.close()


def test_when_full_the_least_important_go_first(nobody: MemoryClient, tmp_path: Path) -> None:
    spill = tmp_path / "spill"
    settings = replace(ALONE, max_pending=3)
    with Ingestor(nobody, "acme/bot", None, spill=spill, settings=settings) as ingest:
        given = [0.5, 0.2, 0.9, 0.6, 0.8]
        ingest.add(*(turn(number, importance) for number, importance in enumerate(given)))
        report = ingest.flush()
    assert (report.dropped, report.pending) == (2, 3)
    assert waiting(spill) == [turn(n).text for n in (2, 3, 4)]


def test_an_import_waits_for_room_and_not_for_ever(
    nobody: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingestor, "WAIT_FOR_ROOM_S", 0.01)
    settings = replace(ALONE, max_pending=2, when_full="wait")
    with Ingestor(nobody, "acme/bot", None, spill=None, settings=settings) as ingest:
        ingest.add(turn(0), turn(1))
        with pytest.raises(TimeoutError, match="2 chunks wait to be written"):
            ingest.add(turn(2))
        assert ingest.report().dropped == 0


def test_a_file_that_cannot_grow_takes_nothing_and_loses_nothing(
    nobody: MemoryClient, tmp_path: Path
) -> None:
    spill = tmp_path / "spill"
    pairs = replace(ALONE, windows=Windowing(turns=2, stride=2))
    with Ingestor(nobody, "acme/bot", None, spill=spill, settings=pairs) as ingest:
        ingest.add(turn(0))
        pages = ingest._outbox._db.execute("PRAGMA page_count").fetchone()[0]
        ingest._outbox._db.execute(f"PRAGMA max_page_count={pages}")
        large = turn(1, attributes={"x": ("y" * 1_000,) * 60})
        with pytest.raises(SpillError, match="full"):
            ingest.add(large)
        ingest._outbox._db.execute("PRAGMA max_page_count=1000000")
        ingest.add(large)
    assert waiting(spill) == [f"{turn(0).text}\n{turn(1).text}"]


def test_after_a_full_file_turns_given_again_are_no_repeats_and_flush_gives_all(
    nobody: MemoryClient, tmp_path: Path
) -> None:
    spill = tmp_path / "spill"
    pairs = replace(ALONE, windows=Windowing(turns=2, stride=2))
    with Ingestor(nobody, "acme/bot", None, spill=spill, settings=pairs) as ingest:
        said = Turn("I prefer tea. " * 20, session="s", attributes={"x": ("y" * 1_000,) * 60})
        for full in (lambda: ingest.add(said), ingest.flush):
            pages = ingest._outbox._db.execute("PRAGMA page_count").fetchone()[0]
            ingest._outbox._db.execute(f"PRAGMA max_page_count={pages}")
            with pytest.raises(SpillError, match="full"):
                full()
            ingest._outbox._db.execute("PRAGMA max_page_count=1000000")
            if full is not ingest.flush:
                ingest.add(said)
        assert ingest.flush().pending == 1
        (left,) = ingest._outbox.first(2)
    assert left.chunk.importance == PREFERENCE


def test_counting_goes_on_behind_a_long_turn_when_the_file_is_opened_again(
    nobody: MemoryClient, tmp_path: Path
) -> None:
    spill = tmp_path / "spill"
    long = "This is long. " * 100
    for texts in ([f"{n} {long}" for n in range(4)], ["short"]):
        with Ingestor(nobody, "acme/bot", None, spill=spill, settings=ALONE) as ingest:
            ingest.add(*(Turn(text, session="s") for text in texts))
    with Ingestor(nobody, "acme/bot", None, spill=spill, settings=ALONE) as ingest:
        assert ingest._outbox.first(100)[-1].chunk.seq == 4


def test_closing_does_not_wait_for_an_embedder_that_hangs(
    nobody: MemoryClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingestor, "CLOSE_GRACE_S", 0.01)
    asked, free = threading.Event(), threading.Event()

    class Hanging(HashingEmbedder):
        def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
            asked.set()
            free.wait()
            return super().embed(texts)

    spill = tmp_path / "spill"
    ingest = Ingestor(nobody, "acme/bot", Hanging(8), spill=spill, settings=ALONE)
    ingest.add(turn(0))
    assert asked.wait(60)
    assert ingest.close(0.01).pending == 1
    assert waiting(spill) == [turn(0).text]
    free.set()
    ingest._thread.join(60)
    assert not ingest._thread.is_alive() and waiting(spill) == [turn(0).text]


def test_turns_of_many_threads_are_all_taken(nobody: MemoryClient, tmp_path: Path) -> None:
    spill = tmp_path / "spill"
    barrier = threading.Barrier(8)

    def add(thread: int) -> None:
        barrier.wait()
        for number in range(20):
            ingest.add(replace(turn(number), text=f"Of {thread}: {number}.", session=f"s{thread}"))

    with Ingestor(nobody, "acme/bot", None, spill=spill, settings=ALONE) as ingest:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(add, range(8)))
        assert ingest.flush().pending == 160
    assert len(set(waiting(spill))) == 160


def test_sessions_beyond_the_bound_are_written_as_they_are(
    nobody: MemoryClient, tmp_path: Path
) -> None:
    spill = tmp_path / "spill"
    settings = IngestSettings(max_sessions=2, retries=0, pause_s=600.0)
    ingest = Ingestor(nobody, "acme/bot", None, spill=spill, settings=settings)
    for name in ("a", "b", "a", "c"):
        ingest.add(Turn(f"Said in {name}.", session=name))
    assert ingest.report().pending == 1  # of b, the one not added to for longest
    ingest.end_session("a")
    assert ingest.report().pending == 2
    ingest.close()
    assert len(waiting(spill)) == 3


def test_open_windows_outlive_the_process(nobody: MemoryClient, tmp_path: Path) -> None:
    spill = tmp_path / "spill"
    settings = IngestSettings(retries=0, pause_s=600.0)
    first = Ingestor(nobody, "acme/bot", None, spill=spill, settings=settings)
    first.add(turn(0), turn(1))
    assert first.report().pending == 0
    first._outbox.close()  # as if the process ended here
    with Ingestor(nobody, "acme/bot", None, spill=spill, settings=settings) as ingest:
        ingest.add(replace(turn(2), seq=None))  # goes on counting
        assert ingest.report().pending == 1
    assert waiting(spill) == ["\n".join(turn(n).text for n in range(3))]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"seq": -1}, "seq: expected 0 to"),
        ({"importance": 1.5}, "importance"),
        ({"ts": -5}, "ts"),
        ({"session": "a/b"}, "session"),
        ({"session": "x" * 257}, "session"),
        ({"topic": "x" * 257}, "topic"),
        ({"attributes": {"a b": 1}}, "attributes"),
        ({"attributes": {f"a{n}": n for n in range(32)}}, "attributes: expected at most 31"),
        ({"attributes": {"last_seq": 1}}, "none named 'last_seq'"),
        ({"speaker": "x" * 257}, "speaker: expected at most 256"),
        ({"text": "\ud800"}, "lone surrogate"),
    ],
)
def test_a_turn_that_the_service_would_refuse_is_refused_at_once(
    nobody: MemoryClient, wrong: dict[str, Any], told: str
) -> None:
    with Ingestor(nobody, "acme/bot", None, spill=None, settings=ALONE) as ingest:
        for add in (ingest.add, ingest.add_text):
            with pytest.raises(ValueError, match=told):
                add(replace(Turn("text", session="s"), **wrong))
        ingest.add(Turn("  \n"), Turn(""))
        assert ingest.report().pending == 0 and str(ingest.report()) == "nothing"


@pytest.mark.parametrize("space", ["acme", "acme/bot/s1", "acme/"])
def test_a_namespace_is_a_tenant_and_an_agent(nobody: MemoryClient, space: str) -> None:
    with pytest.raises(ValueError, match="tenant/agent"):
        Ingestor(nobody, space, None, spill=None)


def test_what_an_embedder_raises_is_told_and_the_thread_goes_on(nobody: MemoryClient) -> None:
    class Wrong(HashingEmbedder):
        def embed(self, texts: Any) -> Any:
            raise KeyError("no such model")

    ingest = Ingestor(nobody, "acme/bot", Wrong(), spill=None, settings=ALONE)
    ingest.add(turn(0))
    for _ in range(2):
        with pytest.raises(KeyError, match="no such model"):
            ingest.flush()
    assert ingest.report().pending == 1
    with pytest.raises(KeyError):
        ingest.close()
    assert not ingest._thread.is_alive()


def test_a_model_is_asked_once_for_a_batch_that_has_to_wait(nobody: MemoryClient) -> None:
    asked = []

    class Counting(HashingEmbedder):
        def embed(self, texts: Any) -> Any:
            asked.extend(texts)
            return super().embed(texts)

    with Ingestor(nobody, "acme/bot", Counting(), spill=None, settings=ALONE) as ingest:
        ingest.add(turn(0), turn(1))
        for _ in range(3):
            assert ingest.flush().pending == 2
        assert len(asked) == 2


def test_a_closed_ingestor_says_so_and_closes_twice(nobody: MemoryClient) -> None:
    ingest = Ingestor(nobody, "acme/bot", None, spill=None, settings=ALONE)
    ingest.add(turn(0))
    report = ingest.close()
    assert report.pending == 1 and "pending 1 (no memsvc answers" in str(report)
    assert ingest.close() == report
    for call in (lambda: ingest.add(turn(1)), ingest.flush):
        with pytest.raises(RuntimeError, match="closed"):
            call()
