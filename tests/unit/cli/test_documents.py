"""README and howto pages name commands, options, settings and files that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from memsvc.cli import cli
from memsvc.config import KEYS

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "howto").glob("*.md"))]
COMMAND = re.compile(r"(?:^|[`\s/])memsvc ((?!answers`)[a-z]+[^`\n|]*)")


def commands(page: Path) -> list[str]:
    """Command lines of a page: in indented blocks, and between backticks."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)  # Python, and odd backticks
    blocks = [line for line in text.splitlines() if line.startswith("    ")]
    return [
        match[1]
        for piece in [*blocks, *re.findall(r"`[^`]+`", text)]
        # "no memsvc answers" is a message, not a command.
        for match in COMMAND.finditer(piece)
    ]


def check(line: str) -> None:
    words = shlex.split(line, comments=True)
    command: click.Command = cli
    context = click.Context(cli)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words[0])
        assert found is not None, f"no command {words[0]!r}: memsvc {line}"
        command, words = found, words[1:]
    known = {"--help", "--version"}
    for parameter in command.params:
        known |= set(parameter.opts)
    for word in words:
        if re.match(r"--?[a-zA-Z]", word):
            option = word.partition("=")[0]
            assert option in known, f"{option} is unknown: memsvc {line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_options_exist(page: Path) -> None:
    for line in commands(page):
        check(line)


def test_the_check_finds_commands() -> None:
    assert sum(len(commands(page)) for page in PAGES) > 40
    with pytest.raises(AssertionError):
        check("query --nonsense")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def anchors(page: Path) -> set[str]:
    """What `#...` may name in a page, as GitHub makes it of headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-") for text in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_into_a_page_name_a_heading_of_it(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text("utf-8")):
        if "://" not in target:
            assert anchor in anchors((page.parent / target).resolve() if target else page), anchor


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_settings_exist(page: Path) -> None:
    sections = "|".join({name.split(".")[0] for name in KEYS})
    text = page.read_text(encoding="utf-8")
    for name in re.findall(rf"[`\s]((?:{sections})\.[a-z_.]+[a-z])", text):
        assert name in KEYS or any(key.startswith(name + ".") for key in KEYS), name
