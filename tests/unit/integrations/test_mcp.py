"""The MCP server without a client: what many calls at once, and wrong ones, are told."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import grpc
import pytest
import uvicorn
from mcp.server.mcpserver.exceptions import ToolError

from memsvc.client import (
    ClientError,
    HashingEmbedder,
    MemoryClient,
    Namespace,
    NewMemory,
    Timeouts,
)
from memsvc.integrations.mcp import Backend, make_server
from memsvc.integrations.mcp.http import Listen, make_app
from memsvc.integrations.mcp.protocol import TimedProtocol
from memsvc.integrations.mcp.tools import MemoryTools
from tests.unit.client.fake import Running, refuse
from tests.waiting import until

SPACE = Namespace("acme", "assistant")


def test_calls_that_wait_for_a_service_that_hangs_fail_together_and_not_in_turn(
    running: Running,
) -> None:
    """Each asked anew, one after the other: the hundredth waited for minutes."""
    callers, told = 16, []
    asked, gate = threading.Barrier(callers + 1), threading.Event()

    def hang(call: str, request: Any, context: grpc.ServicerContext) -> None:
        gate.wait(60)
        refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "too much to do", reason="BUSY")

    running.service.hook = hang
    client = MemoryClient(running.address, timeouts=Timeouts(read=60))
    backend = Backend(client, SPACE, HashingEmbedder(8))

    def ask() -> None:
        asked.wait()
        try:
            backend.ready()
        except ClientError as error:
            told.append(error.reason)

    threads = [threading.Thread(target=ask) for _ in range(callers)]
    for thread in threads:
        thread.start()
    asked.wait()
    until(lambda: bool(running.service.calls("Health")), 60)
    gate.set()
    for thread in threads:
        thread.join(60)
    assert told == ["BUSY"] * callers
    assert len(running.service.calls("Health")) < callers
    backend.close()


def test_a_part_of_an_id_erases_nothing_while_it_is_called_not_found(running: Running) -> None:
    """A handle was resolved that no model was given: the memory was gone, and "not found"."""
    client = MemoryClient(running.address)
    (made,) = client.write("acme/assistant", [NewMemory("The cat is called Minka.")]).results
    backend = Backend(client, SPACE, None)
    tools = MemoryTools(backend)
    assert tools.recall("cat").structured_content["memories"][0]["id"] == made.id
    short = made.id[-4:]
    assert backend.ready().agent.full_text(short), "it is a handle"
    for mode in "fade", "erase":
        told = tools.forget([short, "recent:1"], mode=mode)
        assert (told.changed, told.not_found) == ([], [short, "recent:1"])
    assert not running.service.calls("Forget")
    with pytest.raises(ToolError, match="no memory has the id"):
        tools.get_full_text(short)
    assert tools.forget([short, made.id], mode="erase").changed == [made.id]
    backend.close()


def test_connections_that_send_no_whole_request_are_closed_and_others_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As many as the server takes kept everybody else out, for ever and without a token."""
    monkeypatch.setattr(TimedProtocol, "request_s", 0.1)
    backend = Backend(MemoryClient("127.0.0.1:1"), SPACE, None)
    app = make_app(make_server(backend), Listen("127.0.0.1:8850"), "")
    server = uvicorn.Server(uvicorn.Config(app, port=0, http=TimedProtocol, log_level="error"))

    async def use() -> None:
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        head = b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n"
        for sent in b"", head, head + b"\r\n", head + b"\r\nsome":
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            async with asyncio.timeout(60):
                assert await reader.read() == b"", sent
            writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(3):  # on one connection
            writer.write(head + b"\r\nsome body")
            assert (await reader.readline()).startswith(b"HTTP/1.1 4")
            length = 0
            while (line := await reader.readline()).strip():
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            await reader.readexactly(length)
        writer.close()
        server.should_exit = True
        await serving

    asyncio.run(use())
    backend.close()


@pytest.mark.parametrize(
    ("tool", "inputs", "told"),
    [
        (
            "remember",
            {},
            "text: is required [INVALID_ARGUMENT]; hint: nothing was done; text: ",
        ),
        ("recall", {"query": "x", "since": "yesterday"}, "hint: nothing was done; since: A day"),
        ("forget", {"ids": list(range(9))}, "ids.4: .* (and 4 more)"),
        ("forget", {"ids": ["a"], "dryrun": True}, "dryrun: there is no such input"),
        ("status", {"x" * 500: 1}, "x" * 60 + ": there is no such input"),
    ],
)
def test_a_wrong_input_is_told_by_field_reason_and_hint_and_not_in_words_of_a_library(
    tool: str, inputs: dict[str, Any], told: str
) -> None:
    backend = Backend(MemoryClient("127.0.0.1:1"), SPACE, None)
    with pytest.raises(ToolError) as caught:
        asyncio.run(make_server(backend).call_tool(tool, inputs))
    text = str(caught.value)
    for part in told.split(" .* "):
        assert part in text, text
    assert "pydantic" not in text and "\n" not in text and "x" * 61 not in text
    backend.close()
