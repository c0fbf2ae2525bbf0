"""memsvc size: how much disk and memory a node needs. Asks no service."""

from __future__ import annotations

from dataclasses import asdict

import click

from memsvc.cli import options
from memsvc.cli.output import emit_json, size
from memsvc.domain.limits import GRAPH_DTYPES
from memsvc.domain.sizing import Load
from memsvc.domain.sizing import size as size_of
from memsvc.domain.wording import counted

_MS_A_DAY = 86_400_000


@click.command(name="size")
@click.option("--per-day", type=options.FiniteRange(min=0, min_open=True), required=True,
              help="New memories a day.")  # fmt: skip
@click.option("--dim", "dimension", type=click.IntRange(min=1), required=True,
              help="Numbers in a vector.")  # fmt: skip
@click.option("--ttl", type=options.duration, required=True, metavar="DURATION",
              help="How long they live, as in 180d; for those that live for ever, how far to look "
              "ahead.")  # fmt: skip
@click.option("--dtype", type=click.Choice(GRAPH_DTYPES), default="i8", show_default=True,
              help="index.dtype.")  # fmt: skip
@click.option("--content", type=click.IntRange(min=0), default=2_400, show_default=True,
              help="Bytes of text of a memory.")  # fmt: skip
@click.option("--summary", type=click.IntRange(min=0), default=360, show_default=True,
              help="Bytes of its summary; 0 = none.")  # fmt: skip
@click.option("--metadata", type=click.IntRange(min=0), default=200, show_default=True,
              help="Bytes of its dedup key, labels and attributes.")  # fmt: skip
@click.option("--agents", type=click.IntRange(min=1), default=1, show_default=True,
              help="Agents (tenant/agent) that they are spread over.")  # fmt: skip
@click.option("--hot", type=options.duration, default="120d", show_default=True, metavar="DURATION",
              help="lifecycle.cold_archive_after_days; 0 = no cold tier.")  # fmt: skip
@click.option("--m", type=click.IntRange(2, 128), default=16, show_default=True,
              help="index.m.")  # fmt: skip
@click.option("--readers", type=click.IntRange(0, 64), default=1, show_default=True,
              help="server.readers; auto is one for each core of the node but one.")  # fmt: skip
@click.option("--snapshots", type=click.IntRange(min=0), default=3, show_default=True,
              help="storage.snapshot_keep.")  # fmt: skip
@options.json_option
def size_command(
    per_day: float,
    dimension: int,
    ttl: int,
    dtype: str,
    content: int,
    summary: int,
    metadata: int,
    agents: int,
    hot: int,
    m: int,
    readers: int,
    snapshots: int,
    as_json: bool,
) -> None:
    """Tell how much disk and memory a node needs.

    A replica needs as much as its primary. Calculated for a load that goes on until as many
    memories expire as arrive, of which none is recalled.

    \b
    Examples:
      memsvc size --per-day 80000 --dim 1536 --ttl 180d
      memsvc size --per-day 2000 --dim 512 --ttl 1000d --content 600 --summary 0 --agents 50
    """
    if ttl == 0:
        raise click.BadParameter("say how far to look ahead, as in 1000d", param_hint="--ttl")
    try:
        load = Load(
            per_day,
            dimension,
            ttl / _MS_A_DAY,
            dtype=dtype,
            content=content,
            summary=summary,
            metadata=metadata,
            agents=agents,
            hot_days=hot / _MS_A_DAY,
            m=m,
            readers=readers,
            snapshots=snapshots,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    found = size_of(load)
    if as_json:
        totals = {"disk_total": found.disk_total, "memory_total": found.memory_total}
        emit_json({**asdict(found), **totals})
        return
    memories = counted(found.memories, "memory")
    click.echo(f"{memories} at a time, {found.hot:,} of them in the hot tier\n")
    lines = [("disk", size(found.disk_total))]
    lines += [(f"  {name}", size(part)) for name, part in found.disk.items()]
    lines.append((f"{counted(snapshots, 'snapshot')}, best on another disk", size(found.snapshots)))
    lines.append(("each year more, for the audit trail", size(found.yearly)))
    lines.append(("memory", size(found.memory_total)))
    lines += [(f"  {name}", size(part)) for name, part in found.memory.items()]
    lines.append(("more, to have every hot vector in memory", size(found.whole)))
    width = max(len(name) for name, _ in lines)
    for name, amount in lines:
        click.echo(f"{name:<{width}}  {amount:>10}")
