"""`hermes memsvc`, while memsvc is the provider of memory."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from memsvc.integrations.hermes.provider import hermes_home
from memsvc.integrations.hermes.setup import show


def register_cli(parser: ArgumentParser) -> None:
    """Adds the commands; called by Hermes."""
    commands = parser.add_subparsers(dest="memsvc_command")
    commands.add_parser("status", help="Show the settings and ask the server how it is")
    parser.set_defaults(func=memsvc_command)


def memsvc_command(arguments: Namespace) -> None:
    """`status`, also when nothing is given."""
    show(hermes_home())
