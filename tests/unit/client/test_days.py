"""The day that a summary begins with."""

from __future__ import annotations

from datetime import UTC
from zoneinfo import ZoneInfo

import pytest

from memsvc.client.days import split_day, with_day
from memsvc.client.ingest import IngestSettings
from memsvc.client.ingest.chunker import Chunker
from memsvc.client.ingest.chunks import Turn

LATE = 1_683_500_400_000  # 7 May 2023, 23:00 UTC


def test_the_day_is_written_as_people_ask_for_it() -> None:
    assert with_day("Ann: hi", LATE, UTC) == "7 May 2023\nAnn: hi"
    assert with_day("你好", LATE, UTC) == "2023年5月7日\n你好"
    assert with_day("Ann: hi", LATE, ZoneInfo("Asia/Shanghai")).startswith("8 May 2023\n")
    assert with_day("Ann: hi", 0, UTC) == "Ann: hi"


@pytest.mark.parametrize("text", ["Ann: hi", "你好", "two\nlines"])
def test_what_was_put_before_is_taken_off_again(text: str) -> None:
    assert split_day(with_day(text, LATE, UTC))[1] == text
    assert split_day(text) == ("", text)


@pytest.mark.parametrize("days", [True, False])
def test_the_day_stands_in_the_summary_and_not_in_what_is_embedded(days: bool) -> None:
    chunker = Chunker(IngestSettings(days=days, time_zone="Asia/Shanghai"))
    chunker.add(Turn("I moved to Lyon.", speaker="Ann", session="s", seq=0, ts=LATE), 0)
    (chunk,) = chunker.rest("s")
    assert chunk.content == "Ann: I moved to Lyon."
    assert chunk.summary == ("8 May 2023\n" if days else "") + chunk.content


def test_a_time_zone_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="Europe/Paris"):
        IngestSettings(time_zone="Middle/Earth")
