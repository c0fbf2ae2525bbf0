"""Text for people: tables, ages, sizes; and JSON for scripts."""

from __future__ import annotations

import json
import shutil
import unicodedata
from collections.abc import Iterable, Sequence

import click

_UNITS = (("y", 31_557_600_000), ("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000))


def clean(text: str, *, keep_lines: bool = False) -> str:
    """A text without anything that a terminal would obey: memories come from strangers."""
    if keep_lines:
        return "\n".join(clean(line) for line in text.splitlines())
    return " ".join(
        "".join(
            " " if ch in "\t\n\r" else ch if unicodedata.category(ch)[0] != "C" else "�"
            for ch in text
        ).split()
    )


def width(text: str) -> int:
    """Columns that a text takes on a terminal; Chinese characters take two."""
    return sum(
        0
        if unicodedata.combining(ch)
        else 2
        if unicodedata.east_asian_width(ch) in ("W", "F")
        else 1
        for ch in text
    )


def cut(text: str, columns: int) -> str:
    """The beginning of a text that fits into so many columns."""
    if width(text) <= columns:
        return text
    taken = ""
    left = columns - 1
    for ch in text:
        left -= width(ch)
        if left < 0:
            break
        taken += ch
    return taken + "…"


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, right: frozenset[int] = frozenset()
) -> None:
    """Prints rows in columns; the last one takes what is left of the terminal's width.
    ``right`` are the columns aligned to the right."""
    cells = [[clean(cell) for cell in row] for row in rows]
    widths = [max(width(row[i]) for row in [list(head), *cells]) for i in range(len(head) - 1)]
    room = max(20, shutil.get_terminal_size((100, 24)).columns - sum(widths) - 2 * len(widths))

    def line(row: Sequence[str]) -> str:
        parts = []
        for i, cell in enumerate(row[:-1]):
            padding = " " * (widths[i] - width(cell))
            parts.append(padding + cell if i in right else cell + padding)
        return "  ".join([*parts, cut(row[-1], room)]).rstrip()

    click.secho(line(head), dim=True)
    for row in cells:
        click.echo(line(row))


def age(now_ms: int, then_ms: int) -> str:
    """How long ago, in its largest unit: "3d", "5m"; "-2h" for a time to come."""
    distance = now_ms - then_ms
    sign = "-" if distance < 0 else ""
    for unit, size in _UNITS:
        if abs(distance) >= size:
            return f"{sign}{abs(distance) // size}{unit}"
    return "now"


def size(count: int) -> str:
    """A number of bytes: "1.5 MiB"."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def emit_json(document: object) -> None:
    """One JSON document on standard output."""
    click.echo(json.dumps(document, ensure_ascii=False, indent=2))


def note(text: str) -> None:
    """Something to know beside the result; on standard error, so that pipes stay clean."""
    click.secho(f"note: {clean(text)}", err=True, dim=True)
