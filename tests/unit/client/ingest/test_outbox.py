"""The spill file: order, bounds, and what is refused."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from memsvc.client.ingest.chunks import Chunk, Turn, dedup_key
from memsvc.client.ingest.outbox import Outbox, SpillError

OWNER = "acme/bot"
MANY = 1_000


def chunk(number: int, importance: float = 0.5, content: str = "") -> Chunk:
    text = content or f"text {number}"
    return Chunk(
        key=f"s:{number}:x", content=text, summary=text, session="s", seq=number,
        last_seq=number, ts=1, importance=importance, attributes={"tags": ("a", "b"), "n": 3},
    )  # fmt: skip


def contents(outbox: Outbox) -> list[str]:
    return [one.chunk.content for one in outbox.first(MANY)]


def test_what_was_put_is_there_after_reopening_in_order(tmp_path: Path) -> None:
    path = tmp_path / "below" / "spill"
    outbox = Outbox(path, OWNER)
    turns = [(0, Turn("hello", session="s", seq=0, attributes={"x": (("y",))})), (1, Turn("you"))]
    outbox.put([chunk(n) for n in range(5)], {"s": turns, "t": [(7, Turn("z"))]}, MANY)
    outbox.put([], {"t": []}, MANY)
    outbox.close()
    outbox = Outbox(path, OWNER)
    assert [one.chunk for one in outbox.first(MANY)] == [chunk(n) for n in range(5)]
    assert outbox.open_turns() == {"s": turns} and outbox.count == 5
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    outbox.settle(outbox.first(2))
    assert contents(outbox) == ["text 2", "text 3", "text 4"] and outbox.first_number() == 3


def test_a_longer_chunk_replaces_the_one_that_waits_and_a_shorter_does_not() -> None:
    outbox = Outbox(None, OWNER)
    outbox.put([chunk(1, 0.9, "one")], {}, MANY)
    sent = outbox.first(1)
    outbox.put([chunk(1, 0.2, "one\ntwo")], {}, MANY)
    outbox.put([chunk(1, 0.2, "one")], {}, MANY)
    assert contents(outbox) == ["one\ntwo"] and outbox.count == 1
    outbox.settle(sent)  # of the shorter one
    assert contents(outbox) == ["one\ntwo"]
    outbox.settle(outbox.first(1))
    assert outbox.count == 0


def test_two_conversations_that_begin_alike_both_wait() -> None:
    """Of one session, counted from 0 both, and begun with "Hi": the second replaced the first."""
    outbox = Outbox(None, OWNER)
    first, second = chunk(1, content="Hi\nI eat no nuts."), chunk(1, content="Hi\nI fly on Monday.")
    grown = replace(second, content=f"{second.content}\nBye")
    outbox.put([first, second, first, second, grown, second], {}, MANY)
    assert contents(outbox) == [first.content, grown.content]
    assert len({one.chunk.key for one in outbox.first(MANY)}) == 2


def test_a_chunk_that_grew_replaces_the_one_that_waits_although_its_labels_are_shorter() -> None:
    outbox = Outbox(None, OWNER)
    outbox.put([replace(chunk(1, content="Hello."), category="c" * 200)], {}, MANY)
    outbox.put([chunk(1, content="Hello.\nOk 42.")], {}, MANY)
    assert contents(outbox) == ["Hello.\nOk 42."]


def test_a_turn_that_came_late_joins_the_chunk_that_waits() -> None:
    outbox = Outbox(None, OWNER)
    outbox.put([chunk(1, content="one\nthree"), chunk(1, content="one\ntwo\nthree")], {}, MANY)
    assert contents(outbox) == ["one\ntwo\nthree"]


def test_beyond_the_bound_the_least_important_and_oldest_go() -> None:
    outbox = Outbox(None, OWNER)
    given = [(1, 0.5), (2, 0.2), (3, 0.9), (4, 0.2), (5, 0.5)]
    assert outbox.put([chunk(n, i) for n, i in given], {}, 5) == 0
    assert outbox.put([chunk(6, 0.8)], {}, 5) == 1
    assert contents(outbox) == ["text 1", "text 3", "text 4", "text 5", "text 6"]
    assert outbox.put([chunk(7, 0.3), chunk(8, 0.1)], {}, 5) == 2
    assert contents(outbox) == ["text 1", "text 3", "text 5", "text 6", "text 7"]


def test_chunks_being_sent_are_not_dropped() -> None:
    outbox = Outbox(None, OWNER)
    outbox.put([chunk(1, 0.1), chunk(2, 0.1)], {}, 2)
    assert outbox.put([chunk(3, 0.9)], {}, 2, busy=2) == 1
    assert contents(outbox) == ["text 1", "text 2"]


def test_two_processes_do_not_share_a_file(tmp_path: Path) -> None:
    first = Outbox(tmp_path / "spill", OWNER)
    with pytest.raises(SpillError, match="give each process a spill file of its own"):
        Outbox(tmp_path / "spill", OWNER)
    first.close()
    Outbox(tmp_path / "spill", OWNER).close()


def test_a_file_of_another_agent_is_refused(tmp_path: Path) -> None:
    Outbox(tmp_path / "spill", OWNER).close()
    with pytest.raises(SpillError, match="holds chunks of acme/bot, not of acme/other"):
        Outbox(tmp_path / "spill", "acme/other")


def test_a_file_of_a_later_version_is_refused(tmp_path: Path) -> None:
    Outbox(tmp_path / "spill", OWNER).close()
    db = sqlite3.connect(tmp_path / "spill")
    db.execute("PRAGMA user_version=9")
    db.close()
    with pytest.raises(SpillError, match="format 9, this version reads 1"):
        Outbox(tmp_path / "spill", OWNER)


def test_a_damaged_file_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "spill"
    path.write_bytes(b"no database, whatever it is" * 400)
    with pytest.raises(SpillError, match="move it away"):
        Outbox(path, OWNER)
    with pytest.raises(SpillError, match="Is a directory"):
        Outbox(tmp_path, OWNER)


def test_what_a_later_version_adds_is_passed_over_and_nonsense_is_told(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "spill", OWNER)
    outbox.put([chunk(1)], {}, MANY)
    outbox._db.execute("UPDATE chunks SET body = json_set(body, '$.mood', 'fine')")
    assert contents(outbox) == ["text 1"]
    outbox._db.execute("UPDATE chunks SET body = '{}'")
    with pytest.raises(SpillError, match="does not read"):
        outbox.first(1)


def test_a_key_fits_the_service_whatever_the_session() -> None:
    assert dedup_key("s1", 3, "hello") == "s1:3:2cf24dba5fb0a30e"
    assert len(dedup_key("字" * 85, 2**63 - 1, "x").encode()) <= 512


def test_a_second_attempt_in_one_process_does_not_open_the_file_to_another(tmp_path: Path) -> None:
    """Closing any descriptor of a file takes a process's locks on it away."""
    path = tmp_path / "spill"
    outbox = Outbox(path, OWNER)
    with pytest.raises(SpillError, match="another process"):
        Outbox(path, OWNER)
    other = (
        "import sys\nfrom pathlib import Path\nfrom memsvc.client.ingest.outbox import Outbox\n"
        f"Outbox(Path(sys.argv[1]), {OWNER!r})"
    )
    done = subprocess.run([sys.executable, "-c", other, str(path)], capture_output=True, text=True)
    assert "another process uses it" in done.stderr
    outbox.close()
