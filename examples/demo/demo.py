"""A tour of memsvc in half a minute: run it with `make demo`.

Starts the real service in a temporary folder, gives it two bundled conversations, and asks
about them. Every claim it prints is checked; the exit code is 0 only if all of them hold.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from questions import ACROSS_LANGUAGES, BY_MEANING, BY_WORDS, LIN, MAYA, Question
from service import Service

from memsvc.client import (
    ClientError,
    Embedder,
    EmbedderMissing,
    ForgetMode,
    LocalEmbedder,
    MemoryClient,
    Metadata,
    Mode,
    NewMemory,
)
from memsvc.v1.memory_service_pb2 import Hit, Outcome, QueryResponse
from memsvc.v1.types_pb2 import Status

HERE = Path(__file__).parent
CONVERSATIONS = {MAYA: "conversation.en.jsonl", LIN: "conversation.zh.jsonl"}
BATCH = 100
COLOUR = sys.stdout.isatty() and "NO_COLOR" not in os.environ


class Failed(Exception):
    """An expectation of the demo does not hold."""


def expect(truth: bool, claim: str) -> None:
    """Goes on only if a claim holds."""
    if not truth:
        raise Failed(claim)


def painted(text: str, code: str) -> str:
    """A text in colour, on terminals that show it."""
    return f"\033[{code}m{text}\033[0m" if COLOUR else text


def title(text: str) -> None:
    """The heading of a chapter."""
    print(f"\n{painted(text, '1')}")


def say(text: str) -> None:
    """A line of a chapter."""
    print(f"  {text}")


def day(ts: int) -> str:
    """The date of a time in UTC milliseconds."""
    return datetime.fromtimestamp(ts / 1000, UTC).strftime("%Y-%m-%d")


@contextmanager
def timed(into: list[float]) -> Iterator[None]:
    """Appends the milliseconds that the block took."""
    start = time.perf_counter()
    yield
    into.append((time.perf_counter() - start) * 1000)


class Tour:
    """The chapters, in order."""

    def __init__(self, service: Service, client: MemoryClient, embedder: Embedder) -> None:
        self.service = service
        self.client = client
        self.embedder = embedder
        self.turns: dict[str, list[dict[str, Any]]] = {}
        self.items: dict[str, list[NewMemory]] = {}
        self.total = 0
        self.query_ms: list[float] = []
        self.answers: dict[Question, list[str]] = {}

    # -- remember ------------------------------------------------------------------------

    def remember(self) -> None:
        """Writes both conversations."""
        title("2  Remember two conversations")
        for namespace, file in CONVERSATIONS.items():
            lines = (HERE / file).read_text(encoding="utf-8").splitlines()
            self.turns[namespace] = [json.loads(line) for line in lines]
        self.total = sum(len(turns) for turns in self.turns.values())
        spent: list[float] = []
        with timed(spent):
            for namespace, turns in self.turns.items():
                # The service never calls a model: texts become vectors here, at the agent.
                vectors = self.embedder.embed([turn["text"] for turn in turns])
                self.items[namespace] = [
                    memory_of(turn, vector) for turn, vector in zip(turns, vectors, strict=True)
                ]
        with timed(spent):
            outcomes = self.write_all()
        expect(outcomes == {Outcome.OUTCOME_CREATED: self.total}, "every turn is stored once")
        first, last = (f(t["ts"] for ts in self.turns.values() for t in ts) for f in (min, max))
        say(f"{self.total} turns, {day(first)} to {day(last)}: Maya talks English with her agent,")
        say("林晓 talks Chinese with hers. One tenant, an agent each, so neither sees the other.")
        say(
            f"embedded here, offline, in {spent[0] / 1000:.1f} s; written and on disk in "
            f"{spent[1]:.0f} ms"
        )
        with timed(spent):
            outcomes = self.write_all()
        expect(outcomes == {Outcome.OUTCOME_EXISTS: self.total}, "a repeat stores nothing")
        say(f"the same again: {self.total} × EXISTS in {spent[2]:.0f} ms, nothing stored twice")

    def write_all(self) -> dict[int, int]:
        """Writes everything, session by session; how often each outcome came."""
        outcomes: dict[int, int] = {}
        for namespace, items in self.items.items():
            sessions: dict[str, list[NewMemory]] = {}
            for turn, item in zip(self.turns[namespace], items, strict=True):
                sessions.setdefault(turn["session"], []).append(item)
            for session, part in sessions.items():
                for result in self.client.write(f"{namespace}/{session}", part).results:
                    outcomes[result.outcome] = outcomes.get(result.outcome, 0) + 1
        return outcomes

    # -- recall --------------------------------------------------------------------------

    def ask(self, question: Question, mode: Mode) -> QueryResponse:
        """One search; by meaning the question is embedded, by words it goes as it is."""
        vector = None if mode is Mode.KEYWORD else self.embedder.embed([question.text])[0]
        with timed(self.query_ms):
            return self.client.query(
                question.namespace,
                text=question.text if mode is Mode.KEYWORD else "",
                vector=vector,
                mode=mode,
                top_k=5,
            )

    def ask_all(self, questions: tuple[Question, ...], mode: Mode, *, show: bool = True) -> None:
        """Asks, shows and checks."""
        for question in questions:
            answer = self.ask(question, mode)
            expect(len(answer.items) > 0, f"{question.text!r} finds something")
            expect(not answer.degraded.level, f"{question.text!r} is answered in full")
            hit = answer.items[0]
            expect(
                question.expected in hit.summary,
                f"{question.text!r} finds a memory with {question.expected!r}, not {hit.summary!r}",
            )
            ids = [one.id for one in answer.items]
            before = self.answers.setdefault(question, ids)
            expect(ids == before, f"{question.text!r} is answered as before")
            if show:
                say(question.text)
                found = f"{hit.score:.2f}" if mode is Mode.VECTOR else "word"
                say(painted(f"   {found}  {day(hit.metadata.ts)}  {hit.summary}", "32"))

    def recall(self) -> None:
        """By meaning, across languages, by words, by time."""
        title("3  Ask by meaning (the words differ)")
        self.ask_all(BY_MEANING, Mode.VECTOR)
        title("4  Ask in the other language")
        self.ask_all(ACROSS_LANGUAGES, Mode.VECTOR)
        title("5  Ask by words: paths, model ids, codes, one Chinese character")
        self.ask_all(BY_WORDS, Mode.KEYWORD)
        foreign = self.ask(Question(LIN, BY_WORDS[0].text, ""), Mode.KEYWORD)
        expect(not foreign.items, "an agent never sees memories of another")
        say(f"Maya's {BY_WORDS[0].text} asked of 林晓's agent: nothing, as it must be")
        self.by_time()
        self.over_http()

    def by_time(self) -> None:
        """A filter on the time, alone and together with a search."""
        title("6  Ask by time")
        week = {"gte": stamp(2025, 6, 2), "lt": stamp(2025, 6, 9)}
        with timed(self.query_ms):
            answer = self.client.query(
                MAYA, filters={"ts": week, "role": "user", "importance": {"gt": 0.7}}
            )
        wanted = {
            turn["text"]
            for turn in self.turns[MAYA]
            if week["gte"] <= turn["ts"] < week["lt"]
            and turn["role"] == "user"
            and turn["importance"] > 0.7
        }
        expect({hit.summary for hit in answer.items} == wanted, "a filter finds exactly its rows")
        say("what mattered to Maya in the first week of June")
        for hit in answer.items:
            say(painted(f"   {day(hit.metadata.ts)}  {hit.summary}", "32"))
        summer = {"ts": {"gte": stamp(2025, 7, 1), "lt": stamp(2025, 8, 1)}}
        with timed(self.query_ms):
            answer = self.client.query(LIN, text="年糕", filters=summer)
        expect(len(answer.items) > 0, "words and time together find something")
        inside = all(day(hit.metadata.ts).startswith("2025-07") for hit in answer.items)
        expect(inside, "a search keeps to its time filter")
        say("年糕, in July")
        for hit in answer.items[:2]:
            say(painted(f"   {day(hit.metadata.ts)}  {hit.summary}", "32"))

    def over_http(self) -> None:
        """The same call without gRPC."""
        question = BY_WORDS[2]
        body = {"namespace": question.namespace.split("/"), "text": question.text, "top_k": 5}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.service.http_port}/v1/memory/query",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        # Straight to this machine, whatever proxy the environment names.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=10) as response:
            items = json.load(response)["items"]
        expect(
            [item["id"] for item in items] == self.answers[question], "HTTP answers as gRPC does"
        )
        say(f"POST /v1/memory/query for {question.text}: HTTP/JSON gives the same answer")

    # -- forget --------------------------------------------------------------------------

    def forget(self) -> None:
        """One fact, for good."""
        title("7  Forget a telephone number, for good")
        number = "010 555 0148"
        hits = self.holders_of(number)
        expect(len(hits) == 2, "the number stands in two memories")
        ids = [hit.id for hit in hits]
        trial = self.client.forget(MAYA, ids=ids, mode=ForgetMode.HARD, validate_only=True)
        expect((trial.matched, trial.changed) == (2, 0), "a trial changes nothing")
        answer = self.client.forget(MAYA, ids=ids, mode=ForgetMode.HARD, reason="asked for")
        expect(answer.changed == 2, "both are forgotten")
        self.check_forgotten(number, ids)
        say(f"{number}: {len(ids)} memories found, {answer.changed} forgotten, none left —")
        say("neither by words, nor by meaning, nor by id, from the next query on")
        again = self.client.write(MAYA, [self.item_with(number)]).results[0]
        outcome = (again.outcome, again.status)
        expect(
            outcome == (Outcome.OUTCOME_EXISTS, Status.STATUS_FORGOTTEN),
            "a forgotten memory stays forgotten",
        )
        say("written once more by a stale copy: EXISTS, FORGOTTEN; it does not come back")
        self.total -= len(ids)
        self.forgotten = (number, ids)

    def item_with(self, text: str) -> NewMemory:
        """A turn of Maya's, as it was written."""
        return next(item for item in self.items[MAYA] if text in item.content)

    def holders_of(self, text: str) -> list[Hit]:
        """Memories of Maya's that hold a text."""
        answer = self.client.query(MAYA, text=text, mode=Mode.KEYWORD)
        return [hit for hit in answer.items if text in hit.summary]

    def check_forgotten(self, text: str, ids: list[str]) -> None:
        """Looks for it in every way."""
        vector = self.item_with(text).vector
        assert vector is not None
        for answer in (
            self.client.query(MAYA, text=text, mode=Mode.KEYWORD),
            self.client.query(MAYA, vector=vector, min_score=-1.0, top_k=200),
            self.client.query(MAYA, ids=ids),
        ):
            expect(not set(ids) & {hit.id for hit in answer.items}, f"{text} is forgotten")

    # -- survive -------------------------------------------------------------------------

    def survive(self) -> None:
        """kill -9, and everything is there."""
        title("8  Kill it without a warning")
        start = time.perf_counter()
        pid = self.service.kill_server()
        time.sleep(0.1)
        self.service.wait_ready()
        seconds = time.perf_counter() - start
        memories = self.client.health().store.memories
        expect(memories == self.total, f"{self.total} memories survive, not {memories}")
        self.ask_all(BY_MEANING + ACROSS_LANGUAGES, Mode.VECTOR, show=False)
        self.ask_all(BY_WORDS, Mode.KEYWORD, show=False)
        self.check_forgotten(*self.forgotten)
        say(f"kill -9 {pid}: its supervisor had a new server answering {seconds:.1f} s later")
        say(f"all {memories} memories are there, every question above gets the same answer,")
        say("and what was forgotten stays forgotten")


def memory_of(turn: dict[str, Any], vector: Any) -> NewMemory:
    """A turn of a conversation as a memory. The dedup_key makes writing it repeatable."""
    digest = hashlib.sha256(turn["text"].encode()).hexdigest()[:16]
    return NewMemory(
        content=turn["text"],
        dedup_key=f"{turn['session']}:{turn['seq']}:{digest}",
        vector=vector,
        metadata=Metadata(
            seq=turn["seq"],
            role=turn["role"],
            ts=turn["ts"],
            importance=turn["importance"],
            source="chat",
            topic=turn.get("topic", ""),
        ),
        ttl_ms=0,  # for ever; the default is 180 days
    )


def stamp(year: int, month: int, date: int) -> int:
    """Midnight UTC in milliseconds."""
    return int(datetime(year, month, date, tzinfo=UTC).timestamp() * 1000)


def tour(folder: Path) -> None:
    """The whole of it."""
    embedder = LocalEmbedder()
    title("1  Start")
    service = Service(folder)
    try:
        seconds = service.start()
        say(f"memsvc serve --config {service.config}")
        say(
            f"ready in {seconds:.1f} s: gRPC on {service.address}, HTTP on port "
            f"{service.http_port}, data in a temporary folder"
        )
        with MemoryClient(service.address, embedding=embedder.name) as client:
            chapters = Tour(service, client, embedder)
            chapters.remember()
            chapters.recall()
            chapters.forget()
            chapters.survive()
        code = service.stop()
        expect(code == 0, f"the service stops in good order (exit code {code})")
    except (RuntimeError, ClientError, Failed) as error:
        print(f"\nlast lines of the service's log:\n{service.log_tail()}", file=sys.stderr)
        raise error
    finally:
        service.stop()
    typical = statistics.median(chapters.query_ms)
    title(f"Everything held. {len(chapters.query_ms)} queries, typically {typical:.1f} ms each.")
    say("Next: memsvc serve --help, README.md, docs/howto")


def main() -> int:
    """Exit code 0 when every expectation held."""
    print("memsvc: memories of AI agents, outside their process")
    try:
        with tempfile.TemporaryDirectory(prefix="memsvc-demo-") as folder:
            tour(Path(folder))
    except Failed as claim:
        print(f"\nFAILED: this does not hold: {claim}", file=sys.stderr)
        return 1
    except (RuntimeError, ClientError) as error:
        print(f"\nFAILED: {error}", file=sys.stderr)
        return 1
    except EmbedderMissing as missing:
        print(missing, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nbroken off; nothing is left behind", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
