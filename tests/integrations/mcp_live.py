"""The real MCP server in a process of its own, and the official client beside it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent

from tests.ports import free_port
from tests.scenarios.harness import REPOSITORY, Node
from tests.waiting import until

SPACE = "acme/assistant"
TOKEN = "a-token-of-sixteen-or-more"
TRANSPORTS = ("stdio", "http")


def arguments(node: Node | int, *more: str) -> list[str]:
    port = node if isinstance(node, int) else node.port
    return ["-m", "memsvc.cli", "mcp", "--address", f"127.0.0.1:{port}", *more]


def environment(**more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MEMSVC_")}
    return {**clean, "PYTHONPATH": str(REPOSITORY), "MEMSVC_NAMESPACE": SPACE, **more}


@contextlib.contextmanager
def http_server(node: Node | int, folder: Path, *more: str, token: str = "") -> Iterator[str]:
    """Runs ``memsvc mcp --http``; gives its URL."""
    port = free_port()
    log = folder / "mcp.log"
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, *arguments(node, "--http", f"127.0.0.1:{port}", *more)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=environment(MEMSVC_MCP_TOKEN=token),
            cwd=folder,
        )
    scheme = "https" if "--http-cert-file" in more else "http"
    url = f"{scheme}://127.0.0.1:{port}/mcp"
    try:

        def answers() -> bool:
            assert process.poll() is None, log.read_text()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
                return True
            return False

        until(answers, 60, log.read_text)
        yield url
        process.terminate()
        assert process.wait(30) in (0, -15), log.read_text()
    finally:
        process.kill()
        process.wait(10)


@contextlib.asynccontextmanager
async def connected(
    transport: str, node: Node | int, folder: Path, *more: str, namespace: str = SPACE
) -> AsyncIterator[Client]:
    """The official client over one of TRANSPORTS."""
    more = ("-n", namespace, "--timeout", "60", *more)
    if transport == "stdio":
        server = StdioServerParameters(
            command=sys.executable,
            args=arguments(node, *more),
            env=environment(),
            cwd=folder,
        )
        async with Client(server) as client:
            yield client
        return
    with http_server(node, folder, *more, token=TOKEN) as url:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=180) as http,
            Client(streamable_http_client(url, http_client=http)) as client,
        ):
            yield client


def text_of(result: CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


async def call(client: Client, tool: str, **inputs: Any) -> dict[str, Any]:
    """A call that succeeds: its structured content."""
    result = await client.call_tool(tool, inputs)
    assert not result.is_error, text_of(result)
    assert result.structured_content is not None
    return result.structured_content


async def refused(client: Client, tool: str, **inputs: Any) -> str:
    """A call that is refused: what is told."""
    result = await client.call_tool(tool, inputs)
    assert result.is_error, result
    return text_of(result)
