"""The command line, ``memsvc``. Each command is loaded when it is asked for, so that
``memsvc serve``, whose process supervises, never loads gRPC or numpy."""

from __future__ import annotations

import importlib
import os
from typing import Any, Final

import click

COMMANDS: Final = {
    "serve": "memsvc.cli.serve:serve",
    "config": "memsvc.cli.config:config",
    "write": "memsvc.cli.write:write",
    "query": "memsvc.cli.query:query",
    "forget": "memsvc.cli.forget:forget",
    "health": "memsvc.cli.operate:health",
    "doctor": "memsvc.cli.doctor:doctor",
    "token": "memsvc.cli.tokens:token",
    "tenant": "memsvc.cli.tenants:tenant",
    "import": "memsvc.cli.importing:import_",
    "export": "memsvc.cli.exporting:export",
    "backup": "memsvc.cli.backup:backup",
    "verify": "memsvc.cli.backup:verify",
    "restore": "memsvc.cli.backup:restore",
    "inspect": "memsvc.cli.operate:inspect",
    "degrade": "memsvc.cli.operate:degrade",
    "maintain": "memsvc.cli.operate:maintain",
    "rebuild": "memsvc.cli.rebuilding:rebuild",
    "promote": "memsvc.cli.promoting:promote",
    "generation": "memsvc.cli.generation:generation",
    "reembed": "memsvc.cli.reembed:reembed",
    "mcp": "memsvc.cli.mcp:mcp",
    "calibrate": "memsvc.cli.calibrate:calibrate_",
    "reload": "memsvc.cli.operate:reload",
    "size": "memsvc.cli.size:size_command",
    "hermes": "memsvc.cli.hermes:hermes",
}


class LazyGroup(click.Group):
    """Commands by name, imported at first use; errors of the service become exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order above, which is that of a newcomer's questions."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, loaded now."""
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        if cmd_name != "serve":
            # gRPC tells of failed handshakes in lines of its own; the error here says the same.
            # It looks once, when it is imported. The server's log is left as it is.
            os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        module, _, name = place.partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Runs a command; what the service or the configuration refuses is told, with its
        hint and fields, and never as a traceback."""
        from memsvc.cli.failures import as_failure

        try:
            return super().invoke(ctx)
        except Exception as error:
            failure = as_failure(error)
            if failure is None:
                raise
            raise failure from None


@click.command(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done; 1 the service said no, or a check failed; 2 the command was "
    "not understood; 3 no service answers; 70 and 78 (serve, config): the server kept dying, "
    "or refuses its configuration.",
)
@click.version_option(package_name="memsvc", message="%(prog)s %(version)s")
def cli() -> None:
    """Long-term memory for AI agents.

    Start with `memsvc serve`, then `memsvc write` and `memsvc query`; `memsvc doctor` tells
    whether everything works. Commands talk to the service at --address (or MEMSVC_ADDRESS,
    default 127.0.0.1:8848) with --token (or MEMSVC_TOKEN).
    """


def main() -> None:
    """Entry point of the command."""
    cli(prog_name="memsvc")
