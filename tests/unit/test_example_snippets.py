"""What the documents quote of the examples is what the examples have."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOWTO = ROOT / "docs" / "howto"
QUOTED = re.compile(r"<!-- (examples/\S+) -->\n```\w+\n(.*?)```", re.DOTALL)


def bare(text: str) -> str:
    """Lines without their indentation."""
    return "\n".join(line.strip() for line in text.strip().splitlines())


def test_quoted_code_stands_in_the_example() -> None:
    quotes = [
        (page.name, *quote)
        for page in HOWTO.glob("*.md")
        for quote in QUOTED.findall(page.read_text(encoding="utf-8"))
    ]
    assert len(quotes) >= 6
    for page, file, code in quotes:
        there = bare((ROOT / file).read_text(encoding="utf-8"))
        assert bare(code) in there, f"{page} quotes what is not in {file}:\n{code}"


def test_service_configs_are_those_of_the_examples() -> None:
    page = (HOWTO / "load-balancing.md").read_text(encoding="utf-8")
    folder = ROOT / "examples" / "service-config"
    files = [(folder / name).read_text(encoding="utf-8") for name in ("reads.json", "changes.json")]
    assert re.findall(r"```json\n(.*?)```", page, re.DOTALL) == files
