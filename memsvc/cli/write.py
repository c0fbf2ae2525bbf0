"""memsvc write: store memories from the command line."""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

import click

from memsvc.cli import options
from memsvc.cli.embedding import choose_embedder
from memsvc.cli.output import emit_json, table
from memsvc.client import Metadata, NewMemory, to_plain
from memsvc.domain.types import AttributeValue, Namespace, Vector

DIGEST = 16


def dedup_key(session: str, seq: int | None, content: str) -> str:
    """The recommended key, "session:seq:digest"; without session and seq the digest of the
    content alone, so that the same text is stored once."""
    digest = hashlib.sha256(content.encode()).hexdigest()
    if session and seq is not None:
        return f"{session}:{seq}:{digest[:DIGEST]}"
    return f"sha256:{digest[: 2 * DIGEST]}"


def parse_attributes(
    ctx: click.Context, param: click.Parameter, pairs: tuple[str, ...]
) -> dict[str, AttributeValue]:
    """ "name=value" texts; a value that is JSON (number, true, list of texts) is taken as
    such, everything else as text."""
    attributes: dict[str, AttributeValue] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"expected NAME=VALUE, not {pair!r}")
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            value = text
        if isinstance(value, list) and all(isinstance(one, str) for one in value):
            attributes[name] = tuple(value)
        elif isinstance(value, str | int | float | bool):
            attributes[name] = value
        else:
            attributes[name] = text
    return attributes


@click.command()
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@options.namespace_option
@click.option("--summary", default="", help="Short form: returned, and found by words. One TEXT.")
@click.option("--importance", type=options.FiniteRange(0, 1), help="0 to 1; the service takes 0.5.")
@click.option("--topic", default="", help="Topic tag.")
@click.option(
    "--ts", type=options.time_ms, metavar="UTC_MS", help="When it happened. Default: now."
)
@click.option("--seq", type=int, help="Position in the conversation of the first TEXT.")
@click.option("--role", default="", help="Who said it, as in user or assistant.")
@click.option("--source", default="cli", show_default=True, help="Where it comes from.")
@click.option("--category", default="", help="Category of your own choice.")
@click.option("--type", "memory_type", default="", help="Kind of memory, as in preference.")
@click.option("--topic-key", default="", help="Key under which contradicting facts meet.")
@click.option(
    "--attr",
    "attributes",
    multiple=True,
    callback=parse_attributes,
    metavar="NAME=VALUE",
    help="Own field; may be repeated.",
)
@click.option(
    "--dedup-key",
    "key",
    help="Stored once under this key. Default: session:seq:sha256, or sha256 of the text.",
)
@click.option("--no-dedup", is_flag=True, help="Store it even if the same text is there.")
@click.option(
    "--ttl", type=options.duration, metavar="DURATION", help="Lifetime, as in 30d; 0 = for ever."
)
@click.option(
    "--vector-file", type=options.vector_file, metavar="FILE", help="Its vector. One TEXT."
)
@options.embedder_option
@options.embedding_option
@click.option("--request-id", help="Repeat safely: the same id gets the first answer again.")
@options.json_option
@options.connection
def write(
    target: options.Target,
    texts: tuple[str, ...],
    namespace: Namespace,
    summary: str,
    seq: int | None,
    key: str | None,
    no_dedup: bool,
    ttl: int | None,
    vector_file: Vector | None,
    embedder_choice: str,
    embedding: str,
    request_id: str | None,
    as_json: bool,
    attributes: dict[str, AttributeValue],
    **metadata: Any,
) -> None:
    """Store memories: each TEXT is one. Without any, each line of standard input is one.

    A text that is there already is not stored again (outcome EXISTS).

    \b
    Examples:
      memsvc write -n acme/assistant/chat-7 "The user prefers short answers" --importance 0.9
      cat notes.txt | memsvc write -n acme/assistant --source notes
      memsvc write -n acme/assistant "Draft" --ttl 7d --attr project=apollo --attr done=false
    """
    contents = list(texts) or _lines()
    if not contents:
        raise click.UsageError("nothing to write: give a TEXT, or lines on standard input")
    if len(contents) > 1 and (vector_file is not None or key or summary):
        raise click.UsageError("--vector-file, --dedup-key and --summary go with one TEXT only")
    with target.connect(embedding=embedding) as client:
        vectors: list[Vector | None] = [vector_file] * len(contents)
        if vector_file is None:
            embedder = choose_embedder(client, embedder_choice)
            if embedder is not None:
                vectors = list(embedder.embed([summary] if summary else contents))
        items = []
        for number, (content, vector) in enumerate(zip(contents, vectors, strict=True)):
            here = None if seq is None else seq + number
            made = dedup_key(namespace.session, here, content) if key is None else key
            items.append(
                NewMemory(
                    content,
                    summary,
                    "" if no_dedup else made,
                    vector,
                    Metadata(seq=here, attributes=attributes, **metadata),
                    ttl,
                )
            )
        answer = client.write(namespace, items, request_id=request_id)
    plain = to_plain(answer)
    if as_json:
        emit_json(plain)
        return
    table(
        ("outcome", "status", "id", "text"),
        [
            (one["outcome"], one["status"], one["id"], content)
            for one, content in zip(plain["results"], contents, strict=True)
        ],
    )
    if answer.replayed:
        click.echo("this answer was remembered from an earlier request with this --request-id")


def _lines() -> list[str]:
    if sys.stdin.isatty():
        return []
    return [line.strip() for line in sys.stdin if line.strip()]
