"""What went wrong, told to a person, with the exit code a script needs."""

from __future__ import annotations

import sys
from typing import IO, Any

import click


class Failure(click.ClickException):
    """A message and what to do about it: the service said no, or a check failed."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "", lines: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.hint = hint
        self.lines = lines

    def show(self, file: IO[Any] | None = None) -> None:
        """Prints it, by default to standard error."""
        from memsvc.cli.output import clean

        out = file or sys.stderr
        click.secho(f"error: {clean(self.message, keep_lines=True)}", file=out, fg="red")
        for line in self.lines:
            click.echo(f"  {clean(line)}", file=out)
        if self.hint:
            click.echo(f"hint: {clean(self.hint)}", file=out)


class Misused(Failure):
    """The command asks for what cannot be."""

    exit_code = 2


class Unreachable(Failure):
    """No service answers."""

    exit_code = 3


class ConfigRefused(Failure):
    """Settings that a server would not start with."""

    exit_code = 78


def as_failure(error: Exception) -> Failure | None:
    """An error that is no bug, as a Failure; None for others.

    Looks only at modules that are loaded: an error of one that is not cannot have been raised,
    and the supervisor must not load them.
    """
    client = sys.modules.get("memsvc.client.errors")
    if client is not None and isinstance(error, client.ClientError):
        return _of_client(error)
    embedders = sys.modules.get("memsvc.client.embedders")
    if embedders is not None and isinstance(error, embedders.EmbedderMissing):
        return Misused(str(error))
    if embedders is not None and isinstance(error, embedders.EmbedderError):
        return Failure(str(error))
    config = sys.modules.get("memsvc.config")
    if config is not None and isinstance(error, config.ConfigError):
        return ConfigRefused("configuration refused", lines=error.problems)
    tokens = sys.modules.get("memsvc.service.tokens")
    if tokens is not None and isinstance(error, tokens.TokensFileError):
        return Failure(str(error))
    if isinstance(error, OSError) and error.filename is not None:
        return Failure(f"{error.filename}: {error.strerror}")
    return None


def hint_of(error: Any) -> str:
    """What to do about an error of the client, for somebody at a command line."""
    if error.reason == "TOKEN_MISSING":
        return "put one into MEMSVC_TOKEN, or name it by --token; `memsvc token add` makes one"
    hint: str = error.hint
    return hint


def _of_client(error: Any) -> Failure:
    message = error.message
    if not error.unreachable:
        message = f"{message} [{error.reason or error.code}]"
    lines = tuple(
        f"{one.field}: {one.description}" if one.field else one.description
        for one in error.violations
    )
    if len(lines) == 1 and lines[0] == error.message:
        lines = ()  # the message says it already
    hint = hint_of(error)
    if error.retry_after_ms is not None:
        hint = f"{hint}; " if hint else ""
        hint += f"try again in {error.retry_after_ms / 1000:g} s"
    kind = Unreachable if error.unreachable else Failure
    return kind(message, hint=hint, lines=lines)
