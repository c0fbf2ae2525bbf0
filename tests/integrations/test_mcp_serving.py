"""How the MCP server is served: standard streams, HTTP with token and TLS, options."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from click.testing import CliRunner

from memsvc.cli import cli
from tests.certificates import make_authority
from tests.integrations.mcp_live import (
    TOKEN,
    arguments,
    environment,
    http_server,
)
from tests.ports import free_port
from tests.scenarios.harness import Node


def test_stdout_carries_nothing_but_the_protocol(mcp_node: Node, tmp_path: Path) -> None:
    hello = {
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": {"name": "raw", "version": "1"},
        },
    }  # fmt: skip
    lines = [
        json.dumps(hello),
        '{"jsonrpc": "2.0", "method": "notifications/initialized"}',
        "this is no JSON",
        '{"jsonrpc": "2.0", "id": 2, "method": "no/such"}',
        "[" * 100_000,
        '{"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "remember", '
        '"arguments": {"text": "lone \\ud800 surrogate"}}}',
        '{"jsonrpc": "2.0", "id": 4, "method": "tools/call", "params": {"name": "status"}}',
    ]
    process = subprocess.Popen(
        [sys.executable, *arguments(mcp_node)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=tmp_path,
    )
    try:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("".join(f"{line}\n" for line in lines))
        process.stdin.flush()
        answers = []
        while not any(answer.get("id") == 4 for answer in answers):
            line = process.stdout.readline()
            assert line, process.stderr.read() if process.stderr else ""
            answers.append(json.loads(line))
        rest, errors = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait(10)
    assert process.returncode == 0 and rest == "", (rest, errors)
    assert all(answer["jsonrpc"] == "2.0" for answer in answers)
    (status,) = [answer["result"] for answer in answers if answer.get("id") == 4]
    assert status["structuredContent"]["ready"] is True


def test_http_is_encrypted_and_without_the_token_refused(tmp_path: Path) -> None:
    authority = make_authority(tmp_path)
    pair = (str(authority.server.cert), str(authority.server.key))
    files = ("--http-cert-file", pair[0], "--http-key-file", pair[1])
    trust = ssl.create_default_context(cafile=str(authority.ca.cert))
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    accept = {"Accept": "application/json, text/event-stream"}
    with (
        http_server(free_port(), tmp_path, *files, token=TOKEN) as url,
        httpx2.Client(verify=trust) as http,
    ):
        for given in ("", "Bearer", "Bearer wrong-wrong-wrong-wrong", f"Basic {TOKEN}", TOKEN):
            headers = {**accept, **({"Authorization": given} if given else {})}
            answer = http.post(url, json=body, headers=headers)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        right = {**accept, "Authorization": f"Bearer {TOKEN}"}
        assert http.post(url, json=body, headers=right).status_code == 200
        just = http.post(url, content=b" " * (256 * 1024), headers=right)
        assert just.status_code == 400
        large = http.post(url, content=b" " * (256 * 1024 + 1), headers=right)
        assert large.status_code == 413
        foreign = {**right, "Host": "evil.example:80"}
        assert http.post(url, json=body, headers=foreign).status_code == 421
        origin = {**right, "Origin": "http://evil.example"}
        assert http.post(url, json=body, headers=origin).status_code == 403


@pytest.mark.parametrize(
    "options",
    [
        ["--model", "m"],
        ["--dimension", "8"],
        ["--endpoint", "http://127.0.0.1:1", "--model", "m"],
        ["--endpoint", "ftp://127.0.0.1", "--model", "m", "--dimension", "8"],
        ["--dimension", "8193"],
        ["--min-score", "1.1"],
        ["--http-cert-file", "x.pem"],
        ["-n", "tenant"],
    ],
)
def test_options_that_do_not_go_together_are_refused(options: list[str]) -> None:
    runner = CliRunner(env={"MEMSVC_NAMESPACE": "acme/assistant"})
    result = runner.invoke(cli, ["mcp", *options], prog_name="memsvc")
    assert result.exit_code == 2 and result.stdout == "" and "Error" in result.stderr


@pytest.mark.parametrize(
    ("listen", "token", "told"),
    [
        ("0.0.0.0:1", "", "there is no token"),
        ("[::]:1", "", "there is no token"),
        ("memory.example.org:1", "", "there is no token"),
        ("127.0.0.1:1", "x" * 15, "16 or more"),
        ("127.0.0.1:1", "x" * 16 + "\n", "printable"),
        ("127.0.0.1", "", "HOST:PORT"),
        ("::1:8850", "", "brackets"),
        ("127.0.0.1:0", "", "1 to 65535"),
        ("127.0.0.1:65536", "", "1 to 65535"),
    ],
)
def test_http_on_an_address_that_others_reach_needs_a_token(
    listen: str, token: str, told: str
) -> None:
    runner = CliRunner(env={"MEMSVC_MCP_TOKEN": token, "MEMSVC_NAMESPACE": "acme/assistant"})
    result = runner.invoke(cli, ["mcp", "--http", listen], prog_name="memsvc")
    assert result.exit_code == 2 and told in result.stderr and result.stdout == "", result.output
