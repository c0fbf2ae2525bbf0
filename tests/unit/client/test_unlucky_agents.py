"""AgentMemory in the hands of a hostile or unlucky caller."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray

from memsvc.client import (
    AgentMemory,
    AsyncAgentMemory,
    ClientError,
    ForgetMode,
    Forgotten,
    HashingEmbedder,
    IngestSettings,
    MemoryClient,
    NewMemory,
    RoutedClient,
    Timeouts,
    Turn,
)
from tests.unit.client.fake import Running, refuse
from tests.waiting import until

SPACE = "acme/bot"


@pytest.fixture
def client(running: Running) -> Iterator[MemoryClient]:
    with MemoryClient(running.address) as made:
        yield made


@pytest.fixture
def memory(client: MemoryClient) -> Iterator[AgentMemory]:
    with AgentMemory(client, SPACE) as made:
        yield made


def test_recent_ids_beside_filters_do_not_forget_all_that_the_filters_select(
    memory: AgentMemory, client: MemoryClient, running: Running
) -> None:
    """Ids and filters mean "and": without the ids, which are of no memory, the filters alone
    were left."""
    client.write(f"{SPACE}/s", [NewMemory("The cat is called Minka.")])
    memory.note("user", "The cat is called Minka.", session="s")
    for mode in ForgetMode.HARD, ForgetMode.DECAY:
        with pytest.raises(ValueError, match="'recent:1' is a recent turn and no memory"):
            memory.forget(["recent:1"], filters={"session": "s"}, mode=mode)
    assert not running.service.calls("Forget")
    (known,) = memory.recall("cat").items
    done = memory.forget([known.handle, "recent:1"], mode=ForgetMode.HARD)
    assert isinstance(done, Forgotten) and done.ids == (known.id,)
    assert str(done) == "matched 1, changed 1"


def test_what_waits_does_not_come_after_it_was_forgotten(running: Running) -> None:
    """The Forget succeeded, and the thread wrote the session afterwards."""

    def busy(call: str, request: Any, context: grpc.ServicerContext) -> None:
        if call == "Write":
            refuse(context, grpc.StatusCode.UNAVAILABLE, "not now", reason="BUSY")

    running.service.hook = busy
    settings = IngestSettings(retries=0, pause_s=0.0)
    with (
        MemoryClient(running.address, timeouts=Timeouts(write=0.2)) as client,
        AgentMemory(client, SPACE, ingest=settings) as memory,
    ):
        memory.remember(Turn("The cat is called Minka."), session="s")
        with pytest.raises(ClientError) as caught:
            memory.forget(filters={"session": "s"}, mode=ForgetMode.HARD)
        assert (caught.value.reason, caught.value.retriable) == ("WRITES_PENDING", True)
        assert not running.service.calls("Forget")
        running.service.hook = lambda call, request, context: None
        until(lambda: not memory.flush().pending)
        assert memory.forget(filters={"session": "s"}, mode=ForgetMode.HARD).matched == 1
    assert not running.service.memories["acme", "bot"]


def test_a_list_of_turns_or_a_text_in_the_place_of_a_turn_is_told(memory: AgentMemory) -> None:
    for wrong in ([Turn("x")], "x", None, {"text": "x"}):
        for take in (memory.remember, memory.remember_text):
            with pytest.raises(TypeError, match=r"expected a Turn for each turn, not "):
                take(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="session: expected str, not int"):
        memory.remember(Turn("x"), session=7)  # type: ignore[arg-type]
    assert not memory.flush().written


def test_one_id_as_a_text_is_not_taken_for_its_letters(
    memory: AgentMemory, client: MemoryClient, running: Running
) -> None:
    calls: list[Any] = [
        lambda: memory.forget("m00001"),
        lambda: client.forget(SPACE, ids="m00001"),
        lambda: client.query(SPACE, ids="m00001"),
    ]
    for call in calls:
        with pytest.raises(TypeError, match="expected a list of ids, not the text 'm00001'"):
            call()
    assert not running.service.requests


@pytest.mark.parametrize("text", ["the cat \ud83d", "\udc00", "cat\0", "cat " * 1_000_000])
def test_an_input_that_is_no_text_is_recalled_as_far_as_it_is(
    memory: AgentMemory, running: Running, text: str
) -> None:
    memory.note("user", text)
    context = memory.recall(text)
    assert not context.degraded
    memory.recall("why?")  # with what was said before
    asked = [request.text for request in running.service.calls("Query")]
    assert all(len(one) <= 2_000 for one in asked)


@pytest.mark.parametrize("id_", ["\ud800", "é", "recent:" + "9" * 5_000, "recent:²", "recent:-1"])
def test_an_id_that_cannot_be_one_is_of_nothing(memory: AgentMemory, id_: str) -> None:
    assert memory.full_text(id_) is None


def test_what_is_erased_while_it_is_read_is_in_no_cache(
    memory: AgentMemory, client: MemoryClient, running: Running
) -> None:
    (made,) = client.write(SPACE, [NewMemory("The cat is called Minka.")]).results
    reading, erased = threading.Event(), threading.Event()

    def slow(call: str, request: Any, context: grpc.ServicerContext) -> None:
        if call == "Query" and request.ids and not erased.is_set():
            reading.set()
            client.forget(SPACE, ids=[])  # only another call
            memory.forget([made.id], mode=ForgetMode.DECAY)
            erased.set()

    running.service.hook = slow
    assert memory.full_text(made.id)
    assert reading.is_set()
    before = len(running.service.calls("Query"))
    assert memory.full_text(made.id)
    assert len(running.service.calls("Query")) == before + 1, "it came from the cache"


def test_a_closed_memory_says_so_and_closing_again_takes_no_time(
    client: MemoryClient, running: Running
) -> None:
    client.write(SPACE, [NewMemory("The cat is called Minka.")])
    memory = AgentMemory.open(running.address, SPACE)
    memory.remember(Turn("The dog is called Rex."))
    assert memory.recall("cat").items
    memory.flush()
    for _ in range(4):
        assert memory.close().written == 1
    assert not memory._used._waiting.unfinished_tasks
    calls: list[Any] = [
        lambda: memory.recall("cat"),
        lambda: memory.full_text("x"),
        lambda: memory.forget(["x"]),
        lambda: memory.remember(Turn("x")),
        memory.end_session,
        memory.flush,
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="the memory is closed"):
            call()
    assert memory.report().written == 1


def test_a_closed_client_raises_its_own_error(running: Running) -> None:
    for client in (MemoryClient(running.address), RoutedClient([running.address])):
        client.close()
        with pytest.raises(ClientError) as caught:
            client.query(SPACE, text="x")
        assert caught.value.reason == "CLIENT_CLOSED"


def test_coroutines_may_close_together_and_afterwards_are_told(running: Running) -> None:
    async def use() -> None:
        memory = AsyncAgentMemory(AgentMemory.open(running.address, SPACE))
        await memory.remember(Turn("The dog is called Rex."))
        reports = await asyncio.gather(*(memory.close() for _ in range(4)))
        assert {report.written for report in reports} == {1}
        with pytest.raises(RuntimeError, match="the memory is closed"):
            await memory.recall("dog")
        assert (await memory.close()).written == memory.report().written == 1

    asyncio.run(use())


def test_one_memory_serves_several_event_loops(running: Running) -> None:
    memory = AsyncAgentMemory(AgentMemory.open(running.address, SPACE))

    async def use(number: int) -> None:
        turns = [Turn(f"Loop {number} says {n}.", seq=n, session=f"l{number}") for n in range(5)]
        await asyncio.gather(memory.remember(*turns), memory.recall("loop"), memory.flush(0))

    threads = [threading.Thread(target=lambda n=n: asyncio.run(use(n))) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    asyncio.run(memory.close())
    stored = "\n".join(hit.content for hit in running.service.memories["acme", "bot"].values())
    assert all(f"Loop {number} says {n}." in stored for number in range(4) for n in range(5))


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_an_embedder_that_would_end_a_thread_ends_none(
    running: Running, client: MemoryClient, kind: type[BaseException]
) -> None:
    """The thread of the ingestor died of it, and what was remembered waited for ever, unseen; a
    recall ended the agent."""

    class Ending(HashingEmbedder):
        ends = True

        def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
            if self.ends:
                raise kind("over")
            return super().embed(texts)

    embedder = Ending(8)
    settings = IngestSettings(pause_s=0.05)
    with AgentMemory(client, SPACE, embedder=embedder, ingest=settings) as memory:
        memory.remember(Turn("The cat is called Minka."))
        with pytest.raises(RuntimeError, match=f"the embedder raised {kind.__name__}: over"):
            memory.flush()
        assert memory.recall("cat").degraded == "EMBEDDER_FAILED"
        embedder.ends = False
        until(lambda: not memory.flush().pending)
        assert not memory.recall("cat").degraded


def test_an_error_says_its_reason_and_survives_the_way_from_a_worker(
    client: MemoryClient, running: Running
) -> None:
    running.service.hook = lambda call, request, context: refuse(
        context,
        grpc.StatusCode.FAILED_PRECONDITION,
        "this node is a replica",
        reason="NOT_PRIMARY",
        hint="ask another",
        fields=(("items", "none"),),
        retry_ms=10,
    )
    with pytest.raises(ClientError) as caught:
        client.write(SPACE, [NewMemory("x")])
    error = pickle.loads(pickle.dumps(caught.value))
    assert str(error) == "this node is a replica [NOT_PRIMARY]"
    assert vars(error) == vars(caught.value) and error.metadata == {}


FORKING = """
import os
from memsvc.client import MemoryClient
from memsvc.client.recall.touches import UsedTouches

class Silent(MemoryClient):
    def write(self, *given, **more):
        return None

used = UsedTouches(Silent("127.0.0.1:1"))
used.add("acme/bot", ["x"])
assert used.flush(60)
child = os.fork()
if not child:
    used.add("acme/bot", ["y"])
    os._exit(0 if used.flush(60) else 1)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
"""


def test_touches_of_a_forked_child_are_sent_by_a_thread_of_its_own() -> None:
    """The thread is the parent's: the child waited for it to the end of every time limit."""
    subprocess.run([sys.executable, "-c", FORKING], check=True, timeout=120)
