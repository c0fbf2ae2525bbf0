"""The MCP server as its clients meet it: the official client over both transports, a real node."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from memsvc.client import LocalEmbedder, MemoryClient, Namespace, Status, Update
from memsvc.client.facts import Facts
from memsvc.client.ingest import Ingestor, IngestSettings, Turn, Windowing
from memsvc.integrations.mcp import Backend, make_server
from memsvc.service.tokens_edit import add_token
from tests.integrations.mcp_live import (
    TRANSPORTS,
    arguments,
    call,
    connected,
    environment,
    refused,
    text_of,
)
from tests.scenarios.conftest import MakeNode
from tests.scenarios.harness import Node

PASSPORT = "The user's passport runs out in March 2027."
CAT = "The user's cat is called Minka."


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_tool_is_listed_and_does_its_work(
    mcp_node: Node, tmp_path: Path, transport: str
) -> None:
    async def use() -> None:
        async with connected(
            transport, mcp_node, tmp_path, namespace=f"tools/{transport}"
        ) as client:
            listed = (await client.list_tools()).tools
            assert [tool.name for tool in listed] == [
                "remember", "recall", "get_full_text", "forget", "status",
            ]  # fmt: skip
            for tool in listed:
                assert tool.description and tool.title and tool.output_schema, tool.name
                assert all(
                    "description" in one or tool.name == "forget"
                    for one in tool.input_schema.get("properties", {}).values()
                ), tool.input_schema

            status = await call(client, "status")
            assert status["ready"] and status["searches_by"] == "meaning and words"
            assert status["namespace"] == f"tools/{transport}"

            stored = await call(client, "remember", text=PASSPORT, topic="documents")
            assert stored["outcome"] == "stored" and stored["found_by_meaning"]
            again = await call(client, "remember", text=PASSPORT)
            assert again == {**stored, "outcome": "already_known"}
            cat = await call(client, "remember", text=CAT, importance=0.9, session="chat-1")

            found = await client.call_tool("recall", {"query": "When does my passport expire?"})
            first = found.structured_content["memories"][0]
            assert first["id"] == stored["id"] and first["topic"] == "documents"
            assert first["similarity"] > 0.3
            assert text_of(found).splitlines()[0].startswith(f"- {PASSPORT} (id: {stored['id']}")
            day = first["said_at"][:10]
            inside = await call(client, "recall", query="cat", since=day, until=day)
            assert cat["id"] in [one["id"] for one in inside["memories"]]
            assert inside["memories"][0]["session"] == "chat-1"
            before = await client.call_tool("recall", {"query": "cat", "until": "2020-01-01"})
            assert text_of(before) == "Nothing is remembered about this."
            assert (await call(client, "recall", query="passport", topic="pets"))["memories"] == []

            full = await client.call_tool("get_full_text", {"id": stored["id"]})
            assert text_of(full) == PASSPORT
            assert full.structured_content == {"id": stored["id"], "text": PASSPORT}

            both = [stored["id"], "0198c2f0-0000-7000-8000-000000000000"]
            trial = await call(client, "forget", ids=both, mode="erase", dry_run=True)
            assert trial["changed"] == both[:1] and trial["not_found"] == both[1:]
            faded = await call(client, "forget", ids=[cat["id"]], reason="less important")
            assert faded == {
                "mode": "fade", "changed": [cat["id"]], "not_found": [], "dry_run": False,
            }  # fmt: skip
            assert await call(client, "get_full_text", id=cat["id"])
            await call(client, "forget", ids=both[:1], mode="erase")
            assert "no memory has the id" in await refused(client, "get_full_text", id=stored["id"])
            anew = await call(client, "remember", text=PASSPORT)
            assert anew["outcome"] == "stored" and anew["id"] != stored["id"]

    asyncio.run(use())


@pytest.fixture(scope="module")
def embedder() -> LocalEmbedder:
    return LocalEmbedder()


def test_a_fact_that_changed_is_not_taken_for_the_old_one(
    mcp_node: Node, embedder: LocalEmbedder
) -> None:
    """Vectors of the two are as good as equal; the second was dropped as known."""
    changed = PASSPORT.replace("2027", "2028")
    with MemoryClient(f"127.0.0.1:{mcp_node.port}") as client:
        space = Namespace("changed", "bot")
        facts = Facts(client, space, embedder, embedder.name)
        assert facts.remember(PASSPORT).created and facts.remember(changed).created
        assert not facts.remember(changed.rstrip(".")).created
        alone = IngestSettings(windows=Windowing(turns=1, stride=1))
        with Ingestor(client, space, embedder, spill=None, settings=alone) as ingest:
            ingest.add(
                Turn("My flight is on Monday.", session="a"),
                Turn("My flight is on Tuesday.", session="b"),
            )
            assert ingest.flush().written == 2
            ingest.add(Turn("My flight is on Friday.", session="c"))
            assert ingest.flush().written == 3


HOSTILE: list[tuple[str, dict[str, Any], str]] = [
    ("remember", {}, "text"),
    ("remember", {"text": ""}, "text"),
    ("remember", {"text": " \n "}, "text"),
    ("remember", {"text": "x" * 4_001}, "4000"),
    ("remember", {"text": ["a", "list"]}, "text"),
    ("remember", {"text": None}, "text"),
    ("remember", {"text": "x", "topic": "t" * 61}, "topic"),
    ("remember", {"text": "x", "session": "a/b"}, "session"),
    ("remember", {"text": "x", "session": "a\u0000b"}, "session"),
    ("remember", {"text": "x", "importance": 1.01}, "importance"),
    ("remember", {"text": "x", "importance": "very"}, "importance"),
    ("recall", {"query": ""}, "query"),
    ("recall", {"query": "q" * 2_001}, "2000"),
    ("recall", {"query": {"$ne": None}}, "query"),
    ("recall", {"query": "q", "since": "yesterday"}, "since"),
    ("recall", {"query": "q", "since": "2026-01-02", "until": "2026-01-01"}, "later"),
    ("get_full_text", {"id": ""}, "id"),
    ("get_full_text", {"id": "../../etc/passwd"}, "id"),
    ("get_full_text", {"id": "x" * 65}, "64"),
    ("get_full_text", {"id": "recent:1"}, "id"),
    ("get_full_text", {"id": "\U0001f600" * 60}, "id"),
    ("forget", {}, "ids"),
    ("forget", {"ids": []}, "ids"),
    ("forget", {"ids": "*"}, "ids"),
    ("forget", {"ids": [""]}, "ids"),
    ("forget", {"ids": ["x"] * 101}, "100"),
    ("forget", {"ids": [1]}, "ids"),
    ("forget", {"ids": ["a"], "mode": "HARD; DROP TABLE"}, "mode"),
    (
        "forget",
        {"ids": ["a"], "mode": "erase", "dryrun": True},
        "there are ids, mode",
    ),
    ("status", {"verbose": True}, "there are none"),
    (
        "remember",
        {"text": 1, "importance": 2},
        "importance: input should be",
    ),
    ("no_such_tool", {}, "no_such_tool"),
]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_hostile_inputs_are_refused_as_tool_errors_and_the_server_goes_on(
    mcp_node: Node, tmp_path: Path, transport: str
) -> None:
    async def attack() -> None:
        async with connected(
            transport, mcp_node, tmp_path, namespace=f"attack/{transport}"
        ) as client:
            kept = await call(client, "remember", text=CAT)
            for tool, inputs, names in HOSTILE:
                told = await refused(client, tool, **inputs)
                assert names in told and "Traceback" not in told, (tool, inputs, told)
                assert "pydantic" not in told and "\n" not in told, told
            # At the bounds, and what a prompt might smuggle in, it is a text like any other.
            await call(client, "remember", text="y" * 4_000, topic="\u4e2d" * 60, importance=0)
            for text in (
                "'; DROP TABLE memories; --",
                "\u202e\u0000\u001b[31m",
                "{{7*7}}",
                "\u2603",
            ):
                await call(client, "recall", query=text)
            await call(client, "recall", query="q" * 2_000, since="0001-01-01", until="9999-12-31")
            full = await call(client, "forget", ids=[f"x{n}" for n in range(100)])
            assert len(full["not_found"]) == 100
            odd = await call(client, "forget", ids=["*", "' OR 1=1", "\u0000"], mode="erase")
            assert odd["changed"] == []
            assert (await call(client, "get_full_text", id=kept["id"]))["text"] == CAT
            assert (await call(client, "status"))["ready"]

    asyncio.run(attack())


def test_a_service_that_is_down_is_a_tool_error_with_a_hint_and_is_found_when_it_comes(
    make_node: MakeNode, tmp_path: Path
) -> None:
    node = make_node(index__dimension=512, index__embedding="usem3")

    async def use(client: Client) -> None:
        for tool, inputs in (
            ("status", {}),
            ("remember", {"text": CAT}),
            ("recall", {"query": "cat"}),
            ("get_full_text", {"id": "x"}),
            ("forget", {"ids": ["x"]}),
        ):
            told = await refused(client, tool, **inputs)
            assert "UNREACHABLE" in told and "memsvc serve" in told, told

    async def answered(client: Client) -> None:
        # A channel that was refused waits for some seconds before it tries again.
        while (await client.call_tool("status", {})).is_error:
            await asyncio.sleep(0.1)

    async def down_up_down() -> None:
        async with (
            connected("stdio", node, tmp_path, "--timeout", "5") as one,
            connected("http", node, tmp_path, "--timeout", "5") as other,
        ):
            await use(one)
            await use(other)
            await asyncio.to_thread(node.start)
            await answered(one)
            await answered(other)
            await call(one, "remember", text=CAT)
            assert (await call(other, "recall", query="cat"))["memories"]
            await asyncio.to_thread(node.stop)
            await use(one)
            await use(other)

    asyncio.run(down_up_down())


def test_a_model_at_an_endpoint_turns_texts_into_vectors(tmp_path: Path) -> None:
    node = Node(tmp_path, index__dimension=8, index__embedding="letters").start()
    given: list[str] = []

    class Letters(BaseHTTPRequestHandler):
        """An OpenAI-compatible endpoint."""

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            given.append(self.headers["Authorization"])
            rows = [[1 + text.count(letter) for letter in "abcdefgh"] for text in asked["input"]]
            data = [{"index": n, "embedding": row} for n, row in enumerate(rows)]
            body = json.dumps({"data": data, "model": asked["model"]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    async def use() -> None:
        server = StdioServerParameters(
            command=sys.executable,
            args=arguments(node, "--timeout", "60"),
            env=environment(
                MEMSVC_ENDPOINT=f"http://127.0.0.1:{endpoint.server_port}/v1",
                MEMSVC_MODEL="letters",
                MEMSVC_DIMENSION="8",
                MEMSVC_MIN_SCORE="-1",
                OPENAI_API_KEY="the-key",
            ),
        )
        async with Client(server) as client:
            assert (await call(client, "status"))["searches_by"] == "meaning and words"
            stored = await call(client, "remember", text="a badge")
            assert stored["found_by_meaning"]
            (found,) = (await call(client, "recall", query="aabdeg"))["memories"]
            assert found["similarity"] > 0.9

    with ThreadingHTTPServer(("127.0.0.1", 0), Letters) as endpoint:
        threading.Thread(target=endpoint.serve_forever, daemon=True).start()
        try:
            asyncio.run(use())
        finally:
            endpoint.shutdown()
            node.close()
    assert set(given) == {"Bearer the-key"}


def test_a_store_of_another_model_is_searched_by_words_unless_the_embedder_is_demanded(
    make_node: MakeNode, embedder: LocalEmbedder
) -> None:
    node = make_node().start()
    space = Namespace("acme", "assistant")

    def backend(*, strict: bool) -> Backend:
        client = MemoryClient(f"127.0.0.1:{node.port}")
        return Backend(client, space, embedder, strict=strict)

    async def use() -> None:
        lenient, demanding = backend(strict=False), backend(strict=True)
        async with Client(make_server(lenient)) as client:
            status = await call(client, "status")
            assert status["searches_by"] == "words" and "16 numbers" in status["note"]
            stored = await call(client, "remember", text=CAT)
            assert stored["outcome"] == "stored" and not stored["found_by_meaning"]
            assert (await call(client, "recall", query="cat"))["memories"][0]["id"] == stored["id"]
        async with Client(make_server(demanding)) as client:
            assert "memsvc generation create" in await refused(client, "remember", text=CAT)
        lenient.close()
        demanding.close()

    asyncio.run(use())


def test_what_a_person_put_away_is_not_stored_again_and_a_wrong_token_is_told(
    make_node: MakeNode, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens.yaml"
    key = add_token(tokens, "agent", ["acme/assistant"], ("read", "write", "review"))
    node = make_node(auth__mode="token", auth__tokens_file=str(tokens)).start()
    space = Namespace("acme", "assistant")

    def backend(token: str | None, namespace: Namespace = space) -> Backend:
        return Backend(MemoryClient(f"127.0.0.1:{node.port}", token), namespace, None)

    async def use() -> None:
        right, wrong = backend(key), backend("not-the-token")
        elsewhere = backend(key, Namespace("acme", "assistant-2"))
        async with Client(make_server(right)) as client:
            stored = await call(client, "remember", text=CAT)
            away = Update(stored["id"], status=Status.ARCHIVED)
            await asyncio.to_thread(right.client.write, space, [away])
            again = await call(client, "remember", text=CAT)
            assert again["outcome"] == "withheld" and again["id"] == stored["id"]
        for refusing, reason in ((wrong, "TOKEN_INVALID"), (elsewhere, "PERMISSION_DENIED")):
            async with Client(make_server(refusing)) as client:
                for tool, inputs in (("status", {}), ("recall", {"query": "cat"})):
                    assert reason in await refused(client, tool, **inputs)
        for one in (right, wrong, elsewhere):
            one.close()

    asyncio.run(use())
