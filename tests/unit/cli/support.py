"""Running commands in-process against a small service."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from memsvc.cli import cli
from tests.unit.client.fake import Running


class Commands:
    """``run("query", ...)`` as a person would type it, with the address filled in."""

    def __init__(self, running: Running) -> None:
        self.running = running
        self.service = running.service

    def run(self, *arguments: str, input: str | None = None, **env: str) -> Result:
        """The result; an exception that is no exit is raised."""
        result = CliRunner(env={"MEMSVC_ADDRESS": self.running.address, **env}).invoke(
            cli, arguments, input=input, prog_name="memsvc"
        )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    def json(self, *arguments: str, **env: str) -> Any:
        """The JSON that a successful command printed."""
        result = self.run(*arguments, "--json", **env)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)
