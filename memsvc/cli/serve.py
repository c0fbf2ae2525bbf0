"""memsvc serve: the server under its supervisor. Loads no gRPC, LMDB, usearch or numpy."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from memsvc.cli.settings import config_option, overrides, set_option
from memsvc.config import load
from memsvc.service import logs
from memsvc.supervisor import Supervisor


@click.command()
@config_option
@click.option("--data-dir", metavar="DIR", help="Same as --set storage.data_dir=DIR.")
@click.option("--listen", metavar="HOST:PORT", help="Same as --set server.listen=HOST:PORT.")
@click.option(
    "--http-listen", metavar="HOST:PORT", help="Same as --set server.http_listen=HOST:PORT."
)
@set_option
@click.pass_context
def serve(
    ctx: click.Context,
    config: Path | None,
    data_dir: str | None,
    listen: str | None,
    http_listen: str | None,
    settings: tuple[str, ...],
) -> None:
    """Run the service until it is told to stop.

    A supervisor starts the serving process, restarts it when it dies, and kills and restarts
    it when it stops answering. SIGTERM or Ctrl-C ends both after running calls have finished;
    SIGHUP reads configuration and tokens again.

    \b
    Examples:
      memsvc serve                                  # defaults, ./memsvc-data, this machine only
      memsvc serve --config /etc/memsvc.yaml
      memsvc serve --data-dir /srv/memory --set index.dimension=512

    \b
    Exit codes:
      0   stopped as asked
      70  the server kept dying
      78  configuration refused, or the check at start failed
    """
    given = {
        "storage.data_dir": data_dir,
        "server.listen": listen,
        "server.http_listen": http_listen,
    }
    chosen: dict[str, object] = {k: v for k, v in given.items() if v is not None}
    chosen |= overrides(settings)
    # Read here first: a typing error is told at once, and not ten times by a dying child.
    effective = load(config, os.environ, chosen)
    # Not what lies in the working directory, which is that of the data as often as not.
    command = [sys.executable, "-P", "-m", "memsvc.server"]
    if config is not None:
        command += ["--config", str(config)]
    for name, value in chosen.items():
        command += ["--set", f"{name}={value}"]
    log = effective.settings.log
    logs.configure(log.level, log.format)
    ctx.exit(Supervisor(command, env=os.environ).run())
