"""What the model can call: remember, recall, read in full, forget."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from memsvc.integrations.hermes.shared import SharedMemory, explained

MAX_TEXT: Final = 4_000
MAX_IDS: Final = 20
IMPORTANCE: Final = 0.85
"""Of what the model chose to remember: confirmed, not overheard."""
WAIT_SECONDS: Final = 3.0
MODES: Final = ("fade", "erase")


def _schema(name: str, description: str, required: str, **properties: Any) -> dict[str, Any]:
    return {
        "name": name,
        "description": description,
        "parameters": {"type": "object", "properties": properties, "required": [required]},
    }


SCHEMAS: Final = [
    _schema(
        "memsvc_remember",
        "Keep one fact in long-term memory: a preference, a decision, a correction, something "
        "about the user or their work that will matter in later conversations. Write it so that "
        "it is understood without this conversation. The conversation itself is kept anyway.",
        "text",
        text={"type": "string", "description": f"The fact, at most {MAX_TEXT} characters."},
    ),
    _schema(
        "memsvc_recall",
        "Search long-term memory, over all earlier conversations, by meaning and by words. Use it "
        "when what came with the message is not enough.",
        "query",
        query={"type": "string", "description": "What to look for, as a question or keywords."},
    ),
    _schema(
        "memsvc_get_full_text",
        "Read one memory in full; recalled ones may be shortened.",
        "id",
        id={"type": "string", "description": "The id in brackets before a recalled memory."},
    ),
    _schema(
        "memsvc_forget",
        "Let memories fade, or erase them for good. Only when the user asks for it, or when a "
        "memory turned out wrong.",
        "ids",
        ids={
            "type": "array",
            "items": {"type": "string"},
            "description": f"Ids of recalled memories, at most {MAX_IDS}.",
        },
        mode={
            "type": "string",
            "enum": list(MODES),
            "description": "fade (the default): found less; erase: gone for good, only when the "
            "user wants that.",
        },
    ),
]


class Misused(ValueError):
    """An argument is wrong; the message tells the model what is expected."""


def call(memory: SharedMemory, session: str, name: str, args: Mapping[str, Any]) -> str:
    """The answer of a tool, as JSON; whatever goes wrong stands in "error"."""
    tool = _TOOLS.get(name)
    try:
        if tool is None:
            raise Misused(f"there is no tool {name}; there are {', '.join(_TOOLS)}")
        if not isinstance(args, Mapping):
            raise Misused("expected an object of arguments")
        answer = tool(memory, session, args)
    except Exception as error:
        answer = {"error": explained(error)}
    return json.dumps(answer, ensure_ascii=False)


def _remember(memory: SharedMemory, session: str, args: Mapping[str, Any]) -> dict[str, Any]:
    from memsvc.client.ingest import Turn

    text = _text(args, "text", MAX_TEXT)
    # A source of its own: two facts of one session must be compared like those of two.
    source = f"hermes:{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    fact = Turn(text, session=session, source=source, importance=IMPORTANCE, anew=True)
    waiting = memory.remember(fact, WAIT_SECONDS)
    if waiting:
        where = "on disk" if memory.on_disk else "in memory only, as long as this process runs,"
        return {"remembered": True, "note": f"kept {where} until the service takes it: {waiting}"}
    return {"remembered": True}


def _recall(memory: SharedMemory, session: str, args: Mapping[str, Any]) -> dict[str, Any]:
    query = _text(args, "query", MAX_TEXT)
    context = memory.opened(WAIT_SECONDS).recall(query, session=session)
    # As before a message: [id day] text.
    answer: dict[str, Any] = {"memories": context.text.splitlines()}
    if context.degraded:
        answer["note"] = f"there may be more: the memory service says {context.degraded}"
    return answer


def _read(memory: SharedMemory, session: str, args: Mapping[str, Any]) -> dict[str, Any]:
    id_ = _text(args, "id", MAX_TEXT)
    text = memory.opened(WAIT_SECONDS).full_text(id_)
    if text is None:
        raise Misused(f"there is no memory {id_}; recall it again to get its id")
    return {"id": id_, "text": text}


def _forget(memory: SharedMemory, session: str, args: Mapping[str, Any]) -> dict[str, Any]:
    from memsvc.client import ForgetMode

    ids = args.get("ids")
    if not isinstance(ids, list) or not all(isinstance(one, str) and one for one in ids):
        raise Misused("ids: expected a list of ids of recalled memories")
    if not 1 <= len(ids) <= MAX_IDS:
        raise Misused(f"ids: expected 1 to {MAX_IDS}, not {len(ids)}")
    mode = args.get("mode", MODES[0])
    if mode not in MODES:
        raise Misused(f"mode: expected {' or '.join(MODES)}, not {mode!r}")
    answer = memory.opened(WAIT_SECONDS).forget(
        ids,
        mode=ForgetMode.HARD if mode == "erase" else ForgetMode.DECAY,
        reason="asked for by the agent (Hermes)",
    )
    if not answer.matched:
        raise Misused("there are no such memories; recall them again to get their ids")
    return {"mode": mode, "memories": answer.matched}


def _text(args: Mapping[str, Any], key: str, most: int) -> str:
    value = args.get(key)
    if not isinstance(value, str) or not value.strip():
        raise Misused(f"{key}: expected a text")
    if len(value) > most:
        raise Misused(f"{key}: expected at most {most} characters, not {len(value)}")
    return value.strip().encode(errors="replace").decode()


_TOOLS: Final[Mapping[str, Callable[[SharedMemory, str, Mapping[str, Any]], dict[str, Any]]]] = {
    "memsvc_remember": _remember,
    "memsvc_recall": _recall,
    "memsvc_get_full_text": _read,
    "memsvc_forget": _forget,
}
