"""Holds the scripted conversation of ../conversation.json and prints what was answered.

    python conversation.py ../conversation.json

MEMSVC_NODES lists the nodes (host:port, by commas), MEMSVC_TOKEN is the token, MEMSVC_AGENT the
agent in whose name it is held; each run needs a new one, since memories are known by their keys.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from memory import Memory, Refusal

from memsvc.v1 import memory_service_pb2 as pb
from memsvc.v1 import types_pb2

Step = dict[str, Any]


class Conversation:
    """One script, one namespace."""

    def __init__(self, script: Step, memory: Memory, agent: str) -> None:
        self.script, self.memory, self.agent = script, memory, agent
        self.steps = {step["step"]: step for step in script["steps"]}
        self.ids: dict[str, str] = {}  # of memories, by their keys in the script
        self.position = ""  # of the last change: reads wait for it

    def hold(self, step: Step) -> Step:
        """One step; what is printed of it."""
        try:
            answer = getattr(self, step["call"])(step)
        except Refusal as refusal:
            violations = [{"field": f, "description": d} for f, d in refusal.violations]
            # Client and node both watch the deadline; only the node gives a reason.
            late = refusal.code == "DEADLINE_EXCEEDED"
            reason = "" if late else refusal.reason
            answer = {"refused": {"code": refusal.code, "reason": reason, "violations": violations}}
        return {"step": step["step"], **answer}

    # -- the calls ---------------------------------------------------------------------

    def write(self, step: Step) -> Step:
        items = self.steps[step["repeat_of"]]["items"] if "repeat_of" in step else step["items"]
        request = pb.WriteRequest(
            namespace=self.namespace(step),
            request_id=step["request_id"],
            items=[self.item(item) for item in items],
        )
        answer = self.memory.write(request, **self.how(step))
        self.position = answer.position
        results = []
        for item, result in zip(items, answer.results, strict=True):
            (fields,) = item.values()
            self.ids[fields["key"]] = result.id
            results.append(
                {
                    "key": fields["key"],
                    "outcome": pb.Outcome.Name(result.outcome).removeprefix("OUTCOME_"),
                    "status": types_pb2.Status.Name(result.status).removeprefix("STATUS_"),
                    "version": result.version,
                }
            )
        return {"results": results, "replayed": answer.replayed}

    def query(self, step: Step) -> Step:
        return self.found(self.memory.query(self.search(step), **self.how(step)))

    def browse(self, step: Step) -> Step:
        request = self.search({**step, "mode": "BROWSE", "top_k": step["page_size"]})
        pages = []
        while True:
            answer = self.memory.query(request, **self.how(step))
            pages.append([self.key(hit.id) for hit in answer.items])
            if not answer.next_page_token:
                return {"pages": pages}
            request.page_token = answer.next_page_token

    def forget(self, step: Step) -> Step:
        request = pb.ForgetRequest(
            namespace=self.namespace(step),
            request_id=step["request_id"],
            ids=[self.ids[key] for key in step.get("keys", [])],
            filters=filters(step),
            mode=pb.ForgetMode.Value("FORGET_MODE_" + step["mode"]),
            factor=step.get("factor"),
            validate_only=step.get("validate_only", False),
        )
        answer = self.memory.forget(request, **self.how(step))
        self.position = answer.position
        return {
            "matched": answer.matched,
            "changed": answer.changed,
            "keys": [self.key(one) for one in answer.ids],
            "replayed": answer.replayed,
        }

    def burst(self, step: Step) -> Step:
        answers = [self.memory.query(self.search(step)) for _ in range(step["times"])]
        found = [[self.key(hit.id) for hit in answer.items] for answer in answers]
        return {"answered": len(found), "alike": all(keys == found[0] for keys in found)}

    # -- messages ----------------------------------------------------------------------

    def namespace(self, step: Step) -> types_pb2.Namespace:
        return types_pb2.Namespace(
            tenant=step.get("tenant", self.script["tenant"]),
            agent=self.agent,
            session=self.script["session"],
        )

    def item(self, item: Step) -> pb.WriteItem:
        ((kind, fields),) = item.items()
        if kind == "touch":
            touch = pb.Touch(
                id=self.ids[fields["key"]],
                importance=fields.get("importance"),
                kind=pb.TouchKind.Value("TOUCH_KIND_" + fields["kind"]),
            )
            return pb.WriteItem(touch=touch)
        if kind == "update":
            update = pb.Update(
                id=self.ids[fields["key"]],
                if_version=fields["if_version"],
                summary=fields["summary"],
                reason=fields.get("reason", ""),
            )
            return pb.WriteItem(update=update)
        memory = pb.Memory(
            dedup_key=fields["key"],
            content=fields.get("content", ""),
            summary=fields.get("summary", ""),
            vector=vector(fields),
            metadata=types_pb2.Metadata(
                ts=fields.get("ts"),
                importance=fields.get("importance"),
                topic=fields.get("topic", ""),
            ),
            ttl_ms=fields.get("ttl_ms"),
        )
        return pb.WriteItem(memory=memory)

    def search(self, step: Step) -> pb.QueryRequest:
        return pb.QueryRequest(
            namespace=self.namespace(step),
            vector=vector(step),
            text=step.get("text", ""),
            ids=[self.ids[key] for key in step.get("keys", [])],
            top_k=step.get("top_k", 0),
            min_score=step.get("min_score"),
            filters=filters(step),
            mode=pb.Mode.Value("MODE_" + step.get("mode", "AUTO")),
            min_position=self.position,
            include=pb.Include(content=step.get("include_content", False)),
        )

    def how(self, step: Step) -> dict[str, Any]:
        """Token and deadline, where the step has its own."""
        how = {"token": step.get("token")}
        if "deadline_ms" in step:
            how["within_s"] = step["deadline_ms"] / 1_000
        return how

    # -- answers -----------------------------------------------------------------------

    def key(self, memory_id: str) -> str:
        return next(key for key, one in self.ids.items() if one == memory_id)

    def found(self, answer: pb.QueryResponse) -> Step:
        return {
            "mode": pb.Mode.Name(answer.mode).removeprefix("MODE_"),
            "degraded": answer.degraded.level,
            "hits": [self.hit(hit) for hit in answer.items],
        }

    def hit(self, hit: pb.Hit) -> Step:
        told: Step = {
            "key": self.key(hit.id),
            "summary": hit.summary,
            "version": hit.version,
            "topic": hit.metadata.topic,
            "score": f"{hit.score:.4f}",
            "importance": f"{hit.importance_stored:.4f}",
            "recalls": hit.recall_count,
        }
        if hit.HasField("similarity"):
            told["similarity"] = f"{hit.similarity:.4f}"
        if hit.content:
            told["content"] = hit.content
        return told


def vector(fields: Step) -> types_pb2.Vector | None:
    """The numbers of a step, if it has any."""
    return types_pb2.Vector(values=fields["vector"]) if "vector" in fields else None


def filters(step: Step) -> types_pb2.Filter | None:
    """The conditions of a step, all of which must hold."""
    if "filters" not in step:
        return None
    conditions = [types_pb2.Filter(condition=condition(one)) for one in step["filters"]]
    return types_pb2.Filter(all_of=types_pb2.FilterList(filters=conditions))


def condition(one: Step) -> types_pb2.Condition:
    """One of them: a list of strings to be in, or a number to reach."""
    if "in" in one:
        values = [types_pb2.Value(string_value=text) for text in one["in"]]
        return types_pb2.Condition(field=one["field"], in_values=types_pb2.ValueList(values=values))
    least = types_pb2.Value(double_value=one["gte"])
    return types_pb2.Condition(field=one["field"], range=types_pb2.Range(gte=least))


def main() -> None:
    path = Path(sys.argv[1])
    script = json.loads(path.read_text(encoding="utf-8"))
    memory = Memory(
        os.environ["MEMSVC_NODES"].split(","),
        path.parent / "service-config",
        os.environ.get("MEMSVC_TOKEN", ""),
    )
    agent = os.environ.get("MEMSVC_AGENT") or f"python-{time.time_ns()}"
    conversation = Conversation(script, memory, agent)
    for step in script["steps"]:
        line = conversation.hold(step)
        print(json.dumps(line, ensure_ascii=False, sort_keys=True, separators=(",", ":")))
    memory.close()


if __name__ == "__main__":
    main()
