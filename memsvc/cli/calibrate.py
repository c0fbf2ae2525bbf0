"""memsvc calibrate: the min_score of an embedding model, from a person's own pairs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO, Final

import click
import numpy as np

from memsvc.cli import options
from memsvc.cli.embedding import model_options
from memsvc.cli.failures import Failure
from memsvc.cli.output import clean, emit_json, note
from memsvc.client import Embedder
from memsvc.client.calibration import Calibration, Pair, calibrate, similarities

BINS: Final = 20
BAR: Final = 28
MAX_PAIRS: Final = 100_000
_EXAMPLE: Final = '{"a": "Where do I live?", "b": "I moved to Lyon.", "related": true}'


@click.command("calibrate")
@click.argument("file", type=click.File("rb"))
@click.option(
    "--keep",
    type=options.FiniteRange(0.0, 1.0, min_open=True),
    help="Least share of related pairs that stay at or above it, for example 0.95. Otherwise the "
    "threshold that tells the two kinds apart best.",
)
@model_options
@options.json_option
def calibrate_(file: IO[bytes], keep: float | None, embedder: Embedder, as_json: bool) -> None:
    """Find the min_score of a model: the least similarity that means something with it.

    FILE (- = standard input) has a JSON object a line, with two texts and whether they belong
    together: a question of your users and the memory that answers it, or a memory that does not.
    At least 20 of each kind; a hundred are better. Take pairs as they occur, hard ones too.

    \b
        {"a": "Where do I live?", "b": "I moved to Lyon.", "related": true}
        {"a": "Where do I live?", "b": "I like short answers.", "related": false}

    \b
    Examples:
      memsvc calibrate pairs.jsonl
      memsvc calibrate pairs.jsonl --model bge-m3 --dimension 1024 --endpoint http://127.0.0.1:8080/v1
    """
    pairs = list(_read(file))
    try:
        found = calibrate(similarities(embedder, pairs), pairs, keep=keep)
    except ValueError as error:
        raise Failure(str(error), hint=f"a line is, for example, {_EXAMPLE}") from None
    if as_json:
        emit_json(_document(embedder, found))
    else:
        _show(embedder, found)
    if not found.separates:
        note(
            f"{clean(embedder.name)} hardly tells related pairs of this file from others; let "
            "words decide (hybrid search with a low min_score), or try another model"
        )


def _read(file: IO[bytes]) -> Iterator[Pair]:
    for number, raw in enumerate(file, 1):
        if not raw.strip():
            continue
        if number > MAX_PAIRS:
            raise Failure(f"expected at most {MAX_PAIRS:,} lines")
        try:
            line = json.loads(raw)
            pair = Pair(line["a"], line["b"], line["related"])
            pair.first.encode(), pair.second.encode()  # half a character is no text
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise _wrong(number) from None
        if not (isinstance(pair.first, str) and isinstance(pair.second, str)):
            raise _wrong(number)
        if not isinstance(pair.related, bool) or not pair.first.strip() or not pair.second.strip():
            raise _wrong(number)
        yield pair


def _wrong(number: int) -> Failure:
    return Failure(
        f'line {number}: expected an object with the texts "a" and "b", and "related": true or '
        "false",
        hint=f"for example {_EXAMPLE}",
    )


def _document(embedder: Embedder, found: Calibration) -> dict[str, object]:
    return {
        "model": embedder.name,
        "min_score": found.chosen.min_score,
        "interval": [found.low, found.high],
        "related_kept": round(found.chosen.related, 4),
        "unrelated_kept": round(found.chosen.unrelated, 4),
        "area": round(found.area, 4),
        "related_pairs": len(found.related),
        "unrelated_pairs": len(found.unrelated),
        "stated_now": embedder.min_score,
    }


def _show(embedder: Embedder, found: Calibration) -> None:
    chosen = found.chosen
    click.echo(_histogram(found))
    click.echo()
    click.secho(f"{'min_score':>10}  related kept  unrelated kept", dim=True)
    others = sorted({chosen.min_score, embedder.min_score, found.low, found.high})
    for score in others:
        share = found.at(score)
        mark = "  chosen" if score == chosen.min_score else ""
        if score == embedder.min_score:
            mark += "  stated now"
        click.echo(f"{score:>10.2f}  {share.related:>12.0%}  {share.unrelated:>14.0%}{mark}")
    click.echo()
    click.echo(
        f"{clean(embedder.name)}: min_score {chosen.min_score:.2f} (nine times in ten between "
        f"{found.low:.2f} and {found.high:.2f} with other pairs of this kind). "
        f"A related pair is nearer than another one in {found.area:.0%} of all cases "
        f"({len(found.related)} related pairs, {len(found.unrelated)} others)."
    )


def _histogram(found: Calibration) -> str:
    """Both kinds side by side, from the least similarity down to the greatest; lengths of bars
    are shares of their kind."""
    both = np.concatenate([found.related, found.unrelated])
    low, high = np.floor(both.min() * 20) / 20, np.ceil(both.max() * 20) / 20
    edges = np.linspace(low, max(high, low + 0.05), min(BINS, max(1, round((high - low) * 20))) + 1)
    left = np.histogram(found.unrelated, edges)[0] / len(found.unrelated)
    right = np.histogram(found.related, edges)[0] / len(found.related)
    widest = max(float(left.max()), float(right.max()))
    lines = [f"{'unrelated':>{BAR}}  similarity  related"]
    for number, (a, b) in enumerate(zip(left, right, strict=True)):
        here = edges[number] <= found.chosen.min_score < edges[number + 1]
        mark = "<" if here else " "
        bars = ("█" * round(BAR * a / widest), "█" * round(BAR * b / widest))
        lines.append(f"{bars[0]:>{BAR}}  {edges[number]:>9.2f} {mark} {bars[1]}".rstrip())
    return "\n".join(lines)
