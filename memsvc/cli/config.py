"""memsvc config: what is in force, and whether a file is right."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import click

from memsvc.cli.settings import config_option, overrides, set_option
from memsvc.config import Effective, Settings, example, load, render


@click.group(invoke_without_command=True)
@click.pass_context
def config(ctx: click.Context) -> None:
    """Show or check settings, without a running service.

    Without a subcommand: show. Settings come from defaults, then a YAML file, then MEMSVC_
    variables, then --set; later ones win.
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(show)


def _load(file: Path | None, settings: tuple[str, ...]) -> Effective:
    return load(file, os.environ, overrides(settings))


@config.command()
@config_option
@set_option
def show(config: Path | None = None, settings: tuple[str, ...] = ()) -> None:
    """Print the settings in force and where each comes from, as YAML that loads again."""
    if config is None and "MEMSVC_CONFIG" in os.environ:
        config = Path(os.environ["MEMSVC_CONFIG"])  # not parsed when reached from `config` alone
    click.echo(render(_load(config, settings)), nl=False)


@config.command()
@config_option
@set_option
def check(config: Path | None, settings: tuple[str, ...]) -> None:
    """Tell whether the server would take these settings; exit code 78 when not.

    Files that they name and that are not here are noted, but refuse nothing: the server may run
    elsewhere. It does not start without them.

    \b
    Example:
      memsvc config check --config memsvc.yaml
    """
    effective = _load(config, settings)
    for name, text in effective.notes.items():
        click.echo(f"note: {name}: {text}")
    for name, path in _missing_files(effective.settings):
        click.echo(f"note: {name}: there is no file {path} on this machine")
    for text in _unfit_certificate(effective.settings):
        click.echo(f"note: {text}")
    changed = sum(1 for origin in effective.origins.values() if origin != "default")
    total = len(effective.origins)
    click.echo(f"ok: {changed} of {total} settings are set, the others have their defaults")


def _missing_files(settings: Settings) -> Iterator[tuple[str, str]]:
    tls, replication = settings.server.tls, settings.replication
    for name, path in (
        ("server.tls.cert_file", tls.cert_file),
        ("server.tls.key_file", tls.key_file),
        ("server.tls.client_ca_file", tls.client_ca_file),
        ("replication.token_file", replication.token_file),
        ("replication.ca_file", replication.ca_file),
        ("auth.tokens_file", settings.tokens_path if settings.auth.mode == "token" else ""),
    ):
        if path and not Path(path).exists():
            yield name, str(path)


def _unfit_certificate(settings: Settings) -> Iterator[str]:
    """What clients, or the server itself, would not accept of the certificate that is here."""
    from memsvc.service.certificates import CertificateWrong, days_left, good_until
    from memsvc.service.listening import ListenError, tls_of

    files = tls_of(settings)
    if files is None or not (Path(files.cert_file).exists() and Path(files.key_file).exists()):
        return
    try:
        files.check()
        until = good_until(files.cert_file, files.key_file)
        if soon := days_left(until, time.time_ns() // 1_000_000):
            yield soon
    except ListenError as error:
        yield f"{error}; the server will not start"
    except CertificateWrong as error:
        yield f"server.tls.cert_file: clients will refuse {files.cert_file}: {error}"


@config.command("example")
def example_() -> None:
    """Print a configuration file in which every setting is explained.

    \b
    Example:
      memsvc config example > memsvc.yaml
    """
    click.echo(example(), nl=False)
