"""memsvc doctor: does the service really remember, recall and forget?"""

from __future__ import annotations

import secrets
import time

import click

from memsvc.cli import options
from memsvc.cli.doctor_cases import Examination, Finding
from memsvc.cli.embedding import choose_embedder
from memsvc.cli.output import clean, emit_json
from memsvc.client import ClientError, MemoryClient
from memsvc.domain.types import Namespace

# One agent for all runs, each in a session of its own: an agent per run would stay behind,
# empty, in every list of agents.
SCRATCH = Namespace("memsvc-doctor", "self-check")


@click.command()
@click.option(
    "-n",
    "--namespace",
    type=options.namespace_value,
    metavar="TENANT/AGENT",
    help="Where to try it; only what the run wrote is erased. Default: a tenant of its own, "
    f"{SCRATCH.tenant}; with a token give one that it may use.",
)
@options.embedder_option
@options.json_option
@options.connection
@click.pass_context
def doctor(
    ctx: click.Context,
    target: options.Target,
    namespace: Namespace | None,
    embedder_choice: str,
    as_json: bool,
) -> None:
    """Check a running service with five cases, and erase the traces.

    Write one; recall by its own text; recall by a paraphrase; recall by time filter; forget,
    then recall. Run it after every change of the configuration: it takes a second or two.
    Exit code 0 when all is well, 1 when a case failed, 3 when nobody answers.

    Without the local embedder, or where the store's vectors are of another model, vectors made
    from a hash stand in, and the paraphrase is looked for by words.

    \b
    Examples:
      memsvc doctor
      memsvc doctor -n acme/doctor --json
    """
    start = time.perf_counter()
    where = namespace or SCRATCH
    where = Namespace(where.tenant, where.agent, f"doctor-{secrets.token_hex(4)}")
    with target.connect(least_timeout=10.0) as client:
        health = client.health()
        embedder = choose_embedder(client, embedder_choice)
        examination = Examination(
            client, where, embedder, health.store.dimension, int(time.time() * 1000)
        )
        findings: list[Finding] = []
        if not as_json:
            _head(client, where, health.version, health.ready)
            for reason in health.reasons:
                click.echo(f"  because {clean(reason)}")
        try:
            for finding in examination.run():
                findings.append(finding)
                if not as_json:
                    _line(finding)
        finally:
            left = _clean_up(examination)
    ok = all(finding.ok for finding in findings) and not left
    elapsed_ms = (time.perf_counter() - start) * 1000
    if as_json:
        emit_json(
            {
                "ok": ok,
                "namespace": f"{where.tenant}/{where.agent}",
                "embedder": embedder.name if embedder else None,
                "cases": [finding.plain() for finding in findings],
                "notes": examination.notes,
                "cleanup": left or "done",
                "elapsed_ms": round(elapsed_ms, 1),
            }
        )
    else:
        _verdict(findings, examination.notes, left, elapsed_ms)
    ctx.exit(0 if ok else 1)


def _clean_up(examination: Examination) -> str:
    """Erases the traces; what stood in the way, "" = nothing."""
    if examination.denied:
        return ""
    try:
        examination.clean_up()
        return ""
    except ClientError as error:
        return f"{error.message} [{error.reason}]; what is left expires within the hour"


def _head(client: MemoryClient, where: Namespace, version: str, ready: bool) -> None:
    state = "ready" if ready else "NOT READY"
    click.echo(
        f"{client.address}, memsvc {clean(version)}, {state}; trying in "
        f"{clean(where.tenant)}/{clean(where.agent)}"
    )


def _line(finding: Finding) -> None:
    mark = click.style("ok  ", fg="green") if finding.ok else click.style("FAIL", fg="red")
    click.echo(
        f"  {mark}  {finding.name:<24}{finding.ms:>7.1f} ms  {clean(finding.detail)}"
        + (f"  (by {finding.by})" if finding.ok else "")
    )
    if finding.hint and not finding.ok:
        click.echo(f"        hint: {clean(finding.hint)}")


def _verdict(findings: list[Finding], notes: list[str], left: str, elapsed_ms: float) -> None:
    for text in notes:
        click.echo(f"  note: {clean(text)}")
    if left:
        click.secho(f"  the traces could not be erased: {clean(left)}", fg="red")
    failed = [finding for finding in findings if not finding.ok]
    if failed:
        click.secho(
            f"{len(failed)} of {len(findings)} cases failed ({elapsed_ms / 1000:.1f} s)", fg="red"
        )
    else:
        click.secho(f"all {len(findings)} cases passed in {elapsed_ms / 1000:.1f} s", fg="green")
