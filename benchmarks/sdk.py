"""Evidence recall through the Python SDK: its own chunks, summaries, ranking and contexts.

What people said is given to AgentMemory as an agent would give it, with the offline embedder, and
the questions are asked a day after the last turn. A chunk counts as returning each turn it covers
(its average length is told beside); a context only those of which at least half stands in its text.
Weights and sizes were chosen on every other conversation of LoCoMo; both halves are told.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.report import PERCENTILES, Report, percentiles
from benchmarks.serving import Server
from benchmarks.session import Session
from memsvc.client import (
    AgentMemory,
    Context,
    Include,
    IngestSettings,
    LocalEmbedder,
    RankOptions,
    RecallSettings,
    Turn,
)
from memsvc.client.ingest import LAST_SEQ, Windowing
from memsvc.client.ingest.sentences import sentences

DAY_MS: Final = 86_400_000
AT: Final = 10
DATA_SETS: Final = ("locomo", "memorybank-zh")
WHOLE: Final = RankOptions(max_per_topic=0, token_budget=0, keep=40)
PLAIN: Final = replace(WHOLE, similarity_weight=1.0, importance_weight=0.0, freshness_weight=0.0)
RANKINGS: Final[dict[str, RecallSettings]] = {
    "words and meaning, the service's order": RecallSettings(rank=PLAIN, neighbours=0.0),
    "with neighbours": RecallSettings(rank=PLAIN),
    "with importance": RecallSettings(rank=replace(WHOLE, freshness_weight=0.0)),
    "with freshness": RecallSettings(rank=WHOLE),
    "with at most 3 of a topic: the default": RecallSettings(rank=replace(WHOLE, max_per_topic=3)),
}
INGESTS: Final[dict[str, IngestSettings]] = {
    "one turn a chunk": IngestSettings(windows=Windowing(turns=1, stride=1), days=False),
    "windows of two turns": IngestSettings(windows=Windowing(turns=2, stride=1), days=False),
    "windows of three, stride 2, at most 500 characters": IngestSettings(
        windows=Windowing(most=500), days=False
    ),
    "at most 700 characters": IngestSettings(days=False),
    "summaries with their day: the default": IngestSettings(),
}
TARGETS: Final = (
    ("locomo", "recall", 0.80),
    ("locomo", "context", 0.80),
    ("memorybank-zh", "recall", 0.97),
)
MOST_WORDS: Final = 80
QUICK_TURNS: Final = 100


@dataclass(slots=True)
class Talk:
    """The conversations of one agent. ``parts``: which turns an evidence is made of, as (session,
    seq); ``said``: what was said in a turn."""

    turns: list[Turn] = field(default_factory=list)
    parts: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    said: dict[tuple[str, int], str] = field(default_factory=dict)
    asked: list[tuple[str, list[str]]] = field(default_factory=list)

    def add(self, name: str, turn: Turn) -> None:
        """A turn that belongs to the evidence of that name."""
        seq = sum(1 for one in self.turns if one.session == turn.session)
        self.turns.append(replace(turn, seq=seq))
        self.parts.setdefault(name, []).append((turn.session, seq))
        self.said[turn.session, seq] = turn.text

    def cut(self, count: int) -> Talk:
        """Its first turns, and the questions that these answer."""
        turns = self.turns[:count]
        known = {(turn.session, turn.seq) for turn in turns}
        parts = {name: of for name, of in self.parts.items() if known.issuperset(of)}
        asked = [(text, names) for text, names in self.asked if parts.keys() >= set(names)]
        return Talk(turns, parts, self.said, asked)


@dataclass(slots=True)
class Stored:
    """A memory: the turns it covers, and how long it is in words and characters."""

    turns: frozenset[tuple[str, int]]
    words: int
    characters: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of its own."""
    parser.add_argument("--ingests", action="store_true", help="other ways to make chunks too")


def run(session: Session) -> None:
    """Measures, and writes the report."""
    if session.data is None or not (session.data / DATA_SETS[0]).is_dir():
        print("sdk: no data; name the folder with --data or MEMSVC_DATA", file=sys.stderr)
        return
    report = session.report("sdk", "Evidence recall through the SDK")
    every = session.args.ingests if hasattr(session.args, "ingests") else False
    names = list(INGESTS) if every or session.level == "full" else [*INGESTS][-1:]
    embedder = LocalEmbedder(threads=2)
    for name in DATA_SETS:
        talks = load(session.data, name)
        if session.level == "quick":
            talks = {agent: talk.cut(QUICK_TURNS) for agent, talk in list(talks.items())[:2]}
        facts: dict[str, Any] = {"ingests": {}}
        for way in names:
            report.say(f"{name}: {way}")
            facts["ingests"][way] = _measure(session, report, name, talks, embedder, way)
        report.facts[name] = facts
        _tell(report, name, facts)
    for name, what, target in TARGETS:
        default = report.facts[name]["ingests"][names[-1]]
        found = default["rankings"][[*RANKINGS][-1]] if what == "recall" else default["context"]
        report.verdict(f"{name}, {what}", found["all"], target, least=True)
    words = report.facts["locomo"]["ingests"][names[-1]]["words_returned"]
    report.verdict("locomo, words of a chunk that was returned", words, MOST_WORDS)
    report.save()


def load(root: Path, name: str) -> dict[str, Talk]:
    """The conversations by agent, in the order of the file."""
    talks: dict[str, Talk] = defaultdict(Talk)
    for line in _lines(root / name / "turns.jsonl"):
        if name == "locomo":
            text = line["text"] + (f" [shares {line['caption']}]" if line.get("caption") else "")
            turn = Turn(
                text, role="user", speaker=line["speaker"], session=str(line["session"]),
                ts=line["ts"],
            )  # fmt: skip
            talks[line["conversation"]].add(line["id"], turn)
            continue
        # An exchange is named after its day, which is its session.
        day = line["id"].partition("#")[0]
        for role, text in (("user", line["user_said"]), ("assistant", line["agent_said"])):
            turn = Turn(text, role=role, session=day, ts=line["ts"])
            talks[line["user"]].add(line["id"], turn)
    owner = "conversation" if name == "locomo" else "user"
    for line in _lines(root / name / "questions.jsonl"):
        talks[line[owner]].asked.append((line["question"], line["evidence"]))
    return talks


def _measure(
    session: Session,
    report: Report,
    name: str,
    talks: Mapping[str, Talk],
    embedder: LocalEmbedder,
    way: str,
) -> dict[str, Any]:
    """Stores the conversations in one way, and asks in every way."""
    store = session.workspace.fresh("sdk")
    settings = {"index.dimension": embedder.dimension, "index.embedding": embedder.name}
    tuned = set(sorted(talks)[0::2])
    found: dict[str, Any] = {"memories": 0, "rankings": {}, "context": {}}
    scores: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    spent: list[float] = []
    lengths, tokens, items = [], [], []
    returned: list[Stored] = []
    all_stored: list[Stored] = []
    with Server(store, settings) as server:
        for agent, talk in talks.items():
            now = max(turn.ts or 0 for turn in talk.turns) + DAY_MS
            half = "chosen on" if agent in tuned else "held out"

            def opened(
                recall: RecallSettings, agent: str = agent, now: int = now, words: bool = False
            ) -> AgentMemory:
                return AgentMemory(
                    server.client,
                    f"{name}/{agent}",
                    embedder=None if words else embedder,
                    settings=replace(recall, count_used=False),
                    ingest=replace(INGESTS[way], when_full="wait"),
                    now_ms=lambda: now,
                )

            with opened(RecallSettings()) as memory:
                memory.remember(*talk.turns)
                told = memory.flush(600.0)
                assert not told.pending, told
            stored = _stored(server, f"{name}/{agent}")
            found["memories"] += len(stored)
            all_stored += stored.values()

            def ask(
                label: str,
                memory: AgentMemory, talk: Talk = talk, half: str = half,
                stored: Mapping[str, Stored] = stored,
            ) -> list[Context]:  # fmt: skip
                contexts = []
                for question, evidence in talk.asked:
                    began = time.perf_counter()
                    context = memory.recall(question)
                    if not label:
                        spent.append(time.perf_counter() - began)
                    assert not context.degraded, context.degraded
                    best = [stored[item.id] for item in context.items[:AT]]
                    score = covered(talk, [one.turns for one in best], evidence)
                    scores[label]["all"].append(score)
                    scores[label][half].append(score)
                    contexts.append(context)
                return contexts

            with opened(RecallSettings(rank=PLAIN, neighbours=0.0), words=True) as memory:
                ask("words alone", memory)
            for label, recall in RANKINGS.items():
                with opened(recall) as memory:
                    contexts = ask(label, memory)
            returned += [stored[one.id] for c in contexts for one in c.items[:AT]]
            with opened(RecallSettings()) as memory:
                for context, (_, evidence) in zip(ask("", memory), talk.asked, strict=True):
                    score = _inside(talk, context, stored, evidence)
                    scores["context"]["all"].append(score)
                    scores["context"][half].append(score)
                    tokens.append(context.tokens)
                    items.append(len(context.items))
                    lengths.append(len(context.text))
    session.workspace.drop(store)
    del scores[""]
    means = {
        label: {part: float(np.mean(values)) for part, values in parts.items()}
        for label, parts in scores.items()
    }
    found["context"] = means.pop("context")
    found["rankings"] = means
    found["words_stored"] = float(np.mean([one.words for one in all_stored]))
    found["words_returned"] = float(np.mean([one.words for one in returned]))
    found["characters_stored"] = float(np.mean([one.characters for one in all_stored]))
    found["characters_returned"] = float(np.mean([one.characters for one in returned]))
    found["context_tokens"] = float(np.mean(tokens))
    found["context_items"] = float(np.mean(items))
    found["context_characters"] = float(np.mean(lengths))
    found["latency"] = percentiles(spent)
    return found


def _stored(server: Server, space: str) -> dict[str, Stored]:
    """All memories of an agent, by id."""
    found = {}
    for hit in server.client.browse(space, include=Include(content=True), page_size=200):
        first = hit.metadata.seq
        attribute = hit.metadata.attributes.get(LAST_SEQ)
        last = attribute.int_value if attribute is not None else first
        turns = frozenset((hit.session, seq) for seq in range(first, last + 1))
        found[hit.id] = Stored(turns, len(hit.content.split()), len(hit.content))
    return found


def covered(
    talk: Talk, found: Sequence[frozenset[tuple[str, int]]], evidence: Sequence[str]
) -> float:
    """Share of the evidence of which the chunks cover a turn."""
    seen = frozenset[tuple[str, int]]().union(*found)
    return sum(any(one in seen for one in talk.parts[name]) for name in evidence) / len(evidence)


def _inside(
    talk: Talk, context: Context, stored: Mapping[str, Stored], evidence: Sequence[str]
) -> float:
    """Share of the evidence of which at least half of a turn stands in the context."""
    text = " ".join(context.text.split())
    seen = frozenset[tuple[str, int]]().union(*(stored[one.id].turns for one in context.items))

    def there(turn: tuple[str, int]) -> bool:
        said = talk.said[turn]
        parts = [" ".join(said[a:b].split()) for a, b in sentences(said)]
        held = sum(len(part) for part in parts if part in text)
        return turn in seen and held * 2 >= sum(map(len, parts))

    return sum(any(map(there, talk.parts[name])) for name in evidence) / len(evidence)


def _tell(report: Report, name: str, facts: Mapping[str, Any]) -> None:
    halves = ("all", "chosen on", "held out") if name == "locomo" else ("all",)
    default = [*facts["ingests"].values()][-1]

    def cells(means: Mapping[str, float]) -> Iterable[str]:
        return (f"{means[half]:.4f}" for half in halves)

    report.note(
        f"{name}: {default['memories']:,} memories of {default['words_stored']:.1f} words "
        f"({default['characters_stored']:.0f} characters), those returned "
        f"{default['words_returned']:.1f} ({default['characters_returned']:.0f}); a context has "
        f"{default['context_items']:.1f} items, {default['context_characters']:.0f} characters and "
        f"{default['context_tokens']:.0f} tokens as counted."
    )
    rows: list[tuple[object, ...]] = [
        (label, *cells(means)) for label, means in default["rankings"].items()
    ]
    rows.append(("**in a context of 1,200 tokens**", *cells(default["context"])))
    report.table(f"{name}: evidence recall@{AT}, step by step", ("ranking", *halves), rows)
    if len(facts["ingests"]) > 1:
        report.table(
            f"{name}: by how chunks are made, all else the default",
            ("chunks", "memories", "words returned", f"recall@{AT}", "in a context"),
            [
                (
                    way, f"{one['memories']:,}", f"{one['words_returned']:.1f}",
                    f"{one['rankings'][[*RANKINGS][-1]]['all']:.4f}",
                    f"{one['context']['all']:.4f}",
                )
                for way, one in facts["ingests"].items()
            ],
        )  # fmt: skip
    report.table(
        f"{name}: time of a recall, embedding included",
        PERCENTILES,
        [default["latency"].cells()],
    )


def _lines(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]
