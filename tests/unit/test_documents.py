"""Pages name tests, files and formats that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from memsvc.domain.log import LOG_FORMAT
from memsvc.segments import arrayfile
from memsvc.service.snapshots.manifest import SNAPSHOT_FORMAT
from memsvc.store.env import STORE_FORMAT

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])


def names_of_tests() -> set[str]:
    """Names of all tests."""
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        found |= set(re.findall(r"(?m)^(?:async )?def (test_\w+)", path.read_text("utf-8")))
    return found


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"(?m)^#+ (.*)$", page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-") for text in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target, _, anchor in re.findall(r"\]\(([^)#\s]*)(#([^)\s]+))?\)", text):
        if "://" in target:
            continue
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), f"{target}#{anchor}"


def test_every_promise_is_tried_by_a_test_that_exists() -> None:
    known = names_of_tests()
    text = (DOCS / "reference/promises.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| **")]
    assert len(rows) > 25
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row)
        assert named, row
    assert set(re.findall(r"`(test_\w+)`", text)) <= known


def test_formats_said_are_those_written() -> None:
    text = (DOCS / "reference/formats.md").read_text(encoding="utf-8")
    assert f"`STORE_FORMAT` {STORE_FORMAT}" in text
    assert f"`LOG_FORMAT` is {LOG_FORMAT}" in text
    assert f"format u32 = {arrayfile.FORMAT}" in text and arrayfile.MAGIC == b"MSVCARR\0"
    assert f"last: format {SNAPSHOT_FORMAT}," in text
