"""A model behind an OpenAI-compatible endpoint that notes what it is asked."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


class Model:
    """Answers everything with "Noted.". A context manager."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        """Bodies of the requests, in order."""
        model = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer("application/json", json.dumps({"object": "list", "data": []}))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if "messages" not in body:
                    self._answer("application/json", "{}")
                    return
                model.asked.append(body)
                if body.get("stream"):
                    parts = ({"role": "assistant", "content": "Noted."}, {})
                    lines = [f"data: {_chunk(part)}\n\n" for part in parts]
                    self._answer("text/event-stream", "".join(lines) + "data: [DONE]\n\n")
                else:
                    self._answer("application/json", _whole())

            def _answer(self, kind: str, text: str) -> None:
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: Any) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def message(self) -> str:
        """The last message of the user, as it came."""
        said = [one["content"] for one in self.asked[-1]["messages"] if one["role"] == "user"]
        return str(said[-1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _chunk(delta: dict[str, str]) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": None if delta else "stop"}
    return _told("chat.completion.chunk", choice)


def _whole() -> str:
    message = {"role": "assistant", "content": "Noted."}
    return _told("chat.completion", {"index": 0, "message": message, "finish_reason": "stop"})


def _told(kind: str, choice: dict[str, Any]) -> str:
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return json.dumps(
        {"id": "1", "object": kind, "created": 1, "model": "m", "choices": [choice], "usage": usage}
    )
