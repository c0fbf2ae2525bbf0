"""The day of a memory as people write it, which is how they ask for it."""

from __future__ import annotations

import re
from datetime import datetime, tzinfo
from typing import Final

# Not strftime, whose names depend on the locale of the process.
_MONTHS: Final = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip
_IDEOGRAPHS: Final = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")
_HEAD: Final = re.compile(
    rf"(\d{{1,2}} (?:{'|'.join(_MONTHS)}) \d{{4}}|\d{{4}}年\d{{1,2}}月\d{{1,2}}日)\n"
)


def with_day(text: str, ts_ms: int, zone: tzinfo) -> str:
    """A text behind a line with its day ("7 May 2023"; "2023年5月7日" where the text has
    ideographs). Unchanged without a time, or beyond the year 9999."""
    if ts_ms <= 0:
        return text
    try:
        when = datetime.fromtimestamp(ts_ms / 1_000, zone)
    except (OverflowError, ValueError, OSError):  # beyond the year 9999 in that zone
        return text
    if _IDEOGRAPHS.search(text):
        return f"{when.year}年{when.month}月{when.day}日\n{text}"
    return f"{when.day} {_MONTHS[when.month - 1]} {when.year}\n{text}"


def split_day(text: str) -> tuple[str, str]:
    """The day and the text of what ``with_day`` made; ("", text) where there is no day."""
    found = _HEAD.match(text)
    return (found[1], text[found.end() :]) if found else ("", text)
