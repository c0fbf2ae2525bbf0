"""memsvc query: find memories from the command line."""

from __future__ import annotations

import time
from typing import Any

import click

from memsvc.cli import options
from memsvc.cli.embedding import choose_embedder
from memsvc.cli.output import age, clean, emit_json, note, table
from memsvc.client import Include, MemoryClient, Mode, RankOptions, to_plain
from memsvc.domain.filters import Filter
from memsvc.domain.types import Namespace, Vector
from memsvc.domain.wording import counted
from memsvc.v1 import memory_service_pb2 as pb

MODES = [mode.name.lower() for mode in Mode]


@click.command()
@click.argument("text", required=False, default="")
@options.namespace_option
@click.option(
    "--mode",
    type=click.Choice(MODES, case_sensitive=False),
    default="auto",
    show_default=True,
    help="vector: by meaning. keyword: by words. hybrid: both. browse: newest first. auto: "
    "whatever the request allows.",
)
@click.option("-k", "--top-k", type=click.IntRange(min=1), help="Most items.")
@click.option(
    "--min-score",
    type=options.FiniteRange(-1, 1),
    help="Least similarity of what is found by meaning. Default: that of the embedder here, "
    "else the server's.",
)
@click.option(
    "--filter",
    "filters",
    type=options.filter_value,
    metavar="JSON",
    help='Only what matches, as in \'{"topic": {"in": ["work", "home"]}}\'.',
)
@click.option("--id", "ids", multiple=True, help="Read these memories.")
@click.option(
    "--vector-file", type=options.vector_file, metavar="FILE", help="Search by this vector."
)
@click.option("--rank", is_flag=True, help="Re-rank on the server; counts as a recall.")
@click.option("--ef-search", type=click.IntRange(min=1), help="Breadth of the graph search.")
@click.option(
    "--as-of", type=options.time_ms, metavar="UTC_MS", help="Age and decay as of this time."
)
@click.option("--min-position", default="", help="Wait for this position (a write told it).")
@click.option("--page-token", default="", help="Go on where an earlier browse ended.")
@click.option("--content", is_flag=True, help="Full texts.")
@click.option("--explain", is_flag=True, help="How the answer came about.")
@options.embedder_option
@options.embedding_option
@options.json_option
@options.connection
def query(
    target: options.Target,
    text: str,
    namespace: Namespace,
    mode: str,
    top_k: int | None,
    min_score: float | None,
    filters: Filter | None,
    ids: tuple[str, ...],
    vector_file: Vector | None,
    rank: bool,
    ef_search: int | None,
    as_of: int | None,
    min_position: str,
    page_token: str,
    content: bool,
    explain: bool,
    embedder_choice: str,
    embedding: str,
    as_json: bool,
) -> None:
    """Find memories of an agent, in all its sessions.

    TEXT is searched by meaning and by words. Without TEXT, the newest that match --filter.

    \b
    Examples:
      memsvc query -n acme/assistant "how does the user like answers?"
      memsvc query -n acme/assistant /etc/nginx/nginx.conf --mode keyword
      memsvc query -n acme/assistant --filter '{"ts": {"gte": 1735689600000}}' --json
      memsvc query -n acme/assistant "diet" --explain
    """
    wanted = Mode[mode.upper()]
    with target.connect(embedding=embedding) as client:
        vector = vector_file
        if _needs_vector(wanted, text, vector, ids):
            vector, usual = _embed(client, embedder_choice, text, wanted)
            min_score = usual if min_score is None else min_score
        start = time.perf_counter()
        answer = client.query(
            namespace,
            text="" if wanted is Mode.VECTOR else text,
            vector=vector,
            ids=ids,
            filters=filters,
            mode=Mode.BROWSE if _only_browse(text, vector, ids, filters) else wanted,
            top_k=top_k or 0,
            min_score=min_score,
            ef_search=ef_search or 0,
            min_position=min_position,
            as_of=as_of,
            rank=RankOptions() if rank else None,
            include=Include(content=content, explain=explain),
            page_token=page_token,
        )
        elapsed_ms = (time.perf_counter() - start) * 1000
    if as_json:
        emit_json(to_plain(answer))
        return
    show(answer, elapsed_ms, content=content)


def _needs_vector(mode: Mode, text: str, vector: Vector | None, ids: tuple[str, ...]) -> bool:
    if vector is not None or not text or ids:
        return False
    return mode in (Mode.AUTO, Mode.VECTOR, Mode.HYBRID)


def _only_browse(
    text: str, vector: Vector | None, ids: tuple[str, ...], filters: Filter | None
) -> bool:
    return not text and vector is None and not ids and filters is None


def _embed(
    client: MemoryClient, choice: str, text: str, mode: Mode
) -> tuple[Vector | None, float | None]:
    needed = mode is not Mode.AUTO
    embedder = choose_embedder(client, "local" if needed and choice == "auto" else choice)
    if embedder is None:
        if needed:
            raise click.UsageError(f"--mode {mode.name.lower()} needs a vector (--vector-file)")
        return None, None
    row: Vector = embedder.embed([text])[0]
    return row, embedder.min_score


def show(answer: pb.QueryResponse, elapsed_ms: float, *, content: bool = False) -> None:
    """Prints an answer for people."""
    plain = to_plain(answer)
    now = int(time.time() * 1000)
    hits = plain.get("items", [])
    if hits:
        table(
            ("score", "sim", "age", "imp", "session", "id", "text"),
            [_row(hit, now) for hit in hits],
            right=frozenset({0, 1, 2, 3}),
        )
    if content:
        for hit in hits:
            click.echo(f"\n{hit['id']}\n  {clean(hit.get('content', ''))}")
    how = plain.get("mode", "AUTO").lower()
    click.echo(f"{counted(len(hits), 'memory')}, {how}, {elapsed_ms:.1f} ms")
    if answer.degraded.level:
        note(f"degraded to level {answer.degraded.level}: {answer.degraded.reason}")
    if answer.next_page_token:
        note(f"there is more: --page-token {answer.next_page_token}")
    if explain := plain.get("explain"):
        click.echo()
        table(
            ("part", "plan", "rows", "matching", "candidates", "ms", "why"),
            [
                (
                    one.get("part", ""),
                    one.get("plan", ""),
                    str(one.get("rows", 0)),
                    str(one.get("matching", 0)),
                    str(one.get("candidates", 0)),
                    f"{one.get('elapsed_us', 0) / 1000:.2f}",
                    one.get("why", ""),
                )
                for one in explain
            ],
            right=frozenset({2, 3, 4, 5}),
        )


def _row(hit: dict[str, Any], now: int) -> tuple[str, ...]:
    metadata = hit.get("metadata", {})
    return (
        f"{hit.get('score', 0.0):.3f}",
        f"{hit['similarity']:.3f}" if "similarity" in hit else "-",
        age(now, metadata.get("ts", hit.get("created_at", now))),
        f"{metadata.get('importance', 0.0):.2f}",
        hit.get("session", "-"),
        hit["id"],
        hit.get("summary", ""),
    )
