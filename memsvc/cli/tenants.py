"""memsvc tenant: whole tenants and agents."""

from __future__ import annotations

from typing import Any

import click

from memsvc.cli import options
from memsvc.cli.dedup import all_hits, clean_up, find_duplicates
from memsvc.cli.exporting import run_export, split_tenant, vectors_option
from memsvc.cli.failures import Misused
from memsvc.cli.output import clean, cut, emit_json, size, table
from memsvc.client import MemoryClient, to_plain
from memsvc.domain.types import Namespace
from memsvc.domain.wording import counted


@click.group()
def tenant() -> None:
    """List, export, erase and clean up whole tenants. Needs the admin right."""


@tenant.command("list")
@click.argument("name", metavar="[TENANT]", default="")
@options.json_option
@options.connection
def list_(target: options.Target, name: str, as_json: bool) -> None:
    """List tenants and their agents with counts."""
    with target.connect() as client:
        agents = list(client.admin.list_tenants(name))
    if as_json:
        emit_json([to_plain(one) for one in agents])
        return
    table(
        ("memories", "active", "size", "tenant/agent"),
        [
            (f"{one.memories:,}", f"{one.active:,}", size(one.bytes), f"{one.tenant}/{one.agent}")
            for one in agents
        ],
        right=frozenset({0, 1, 2}),
    )
    click.echo(
        f"{counted(len({one.tenant for one in agents}), 'tenant')}, "
        f"{counted(len(agents), 'agent')}, {counted(sum(one.memories for one in agents), 'memory')}"
    )


@tenant.command()
@click.argument("where", type=split_tenant, metavar="TENANT[/AGENT]")
@click.argument("file", type=click.Path(allow_dash=True))
@vectors_option
@options.connection
def export(target: options.Target, where: tuple[str, str], file: str, vectors: bool) -> None:
    """Write everything of a tenant or agent into a JSONL file; same as `memsvc export`."""
    run_export(target, where, file, vectors)


@tenant.command()
@click.argument("where", type=split_tenant, metavar="TENANT[/AGENT]")
@click.option("--dry-run", is_flag=True, help="Only tell what would be erased.")
@click.option("--confirm", metavar="NAME", help="The same name again, instead of being asked.")
@click.option("--reason", default="", help="Why, for the audit.")
@options.json_option
@options.connection
def erase(
    target: options.Target,
    where: tuple[str, str],
    dry_run: bool,
    confirm: str | None,
    reason: str,
    as_json: bool,
) -> None:
    """Erase everything of a tenant or agent, for good.

    It is gone from every answer at once, and from every file within
    lifecycle.purge_within_hours (`memsvc maintain --purge` does it now). The audit keeps
    headers without content.

    \b
    Examples:
      memsvc tenant erase acme --dry-run
      memsvc tenant erase acme/assistant --confirm acme/assistant --reason "end of contract"
    """
    name = "/".join(part for part in where if part)
    with target.connect() as client:
        if not dry_run:
            if confirm is None:
                told = client.admin.erase_tenant(*where, validate_only=True)
                confirm = click.prompt(
                    f"{counted(told.erased, 'memory')} of {name} will be erased for good. "
                    "Type its name to go on",
                    err=True,
                )
            if confirm != name:
                raise Misused(f"{confirm!r} is not {name!r}; nothing was erased")
        answer = client.admin.erase_tenant(*where, validate_only=dry_run, reason=reason)
    if as_json:
        emit_json({"erased": 0, **to_plain(answer)})
        return
    verb = "would be erased" if dry_run else "erased"
    click.echo(f"{counted(answer.erased, 'memory')} of {name} {verb}")


@tenant.command()
@click.argument("where", type=split_tenant, metavar="TENANT[/AGENT]")
@click.option("--apply", "apply_", is_flag=True, help="Erase the duplicates; default: only tell.")
@click.option("--show", type=click.IntRange(min=0), default=10, help="Groups to show per agent.")
@options.json_option
@options.connection
def dedup(
    target: options.Target, where: tuple[str, str], apply_: bool, show: int, as_json: bool
) -> None:
    """Find memories of an agent that hold the same text twice, and erase all but the oldest.

    Texts are the same when they differ in case, spaces, full or half width at most. The oldest
    stays, with the highest importance of the group. For stores that were filled without a
    dedup_key; the search for similar meaning is the work of the agent's side.

    \b
    Examples:
      memsvc tenant dedup acme                    # tells what it would do
      memsvc tenant dedup acme/assistant --apply
    """
    report: list[dict[str, Any]] = []
    with target.connect(least_timeout=30.0) as client:
        for namespace in _namespaces(client, where):
            groups = find_duplicates(all_hits(client, namespace))
            doubles = sum(len(group.drop) for group in groups)
            erased = sum(clean_up(client, namespace, groups)) if apply_ else 0
            name = f"{namespace.tenant}/{namespace.agent}"
            report.append({"namespace": name, "duplicates": doubles, "erased": erased})
            if as_json:
                continue
            click.echo(f"{name}: {counted(doubles, 'duplicate')} of {counted(len(groups), 'text')}")
            for group in sorted(groups, key=lambda group: -len(group.drop))[:show]:
                text = clean(group.keep.summary or group.keep.content)
                click.echo(f"  {len(group.drop) + 1:>4} ×  {cut(text, 80)}")
    if as_json:
        emit_json({"applied": apply_, "agents": report})
    elif apply_:
        click.echo(f"{counted(sum(one['erased'] for one in report), 'memory')} erased")
    else:
        click.echo("nothing was changed; --apply erases all but the oldest of each")


def _namespaces(client: MemoryClient, where: tuple[str, str]) -> list[Namespace]:
    tenant_name, agent = where
    if agent:
        return [Namespace(tenant_name, agent)]
    return [Namespace(one.tenant, one.agent) for one in client.admin.list_tenants(tenant_name)]
