"""Vectors from an OpenAI-compatible endpoint: POST {base_url}/embeddings."""

from __future__ import annotations

import email.utils
import json
import os
import random
import time
from collections.abc import Callable, Sequence
from math import inf
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from memsvc.client.embedders.batches import BATCH
from memsvc.client.embedders.port import (
    EmbedderError,
    EmbedderMissing,
    EmbedderUnavailable,
    TextRefused,
)
from memsvc.domain.backoff import backoff_s
from memsvc.domain.limits import MAX_DIMENSION

if TYPE_CHECKING:
    import httpx

OPENAI_URL: Final = "https://api.openai.com/v1"
KEY_VARIABLE: Final = "OPENAI_API_KEY"
UNCALIBRATED_MIN_SCORE: Final = 0.62
"""The service's own default. Every model has its own scale: measure it."""

MAX_PAUSE_S: Final = 30.0
"""Who is asked to wait longer gives up, and the caller decides."""
_SHOWN: Final = 300
"""Characters of an answer that an error shows."""
ROOM_BYTES: Final = 1024 * 1024
NUMBER_BYTES: Final = 64
"""What an answer may take: so much for each number, and room for what else it tells."""
LEAST_SECRET: Final = 8
"""Characters from which a value in the query of base_url is not shown in errors."""
_TEXT_AT_FAULT: Final = frozenset({400, 413, 422})
_LATER: Final = frozenset({408, 409, 425, 429})


class EndpointEmbedder:
    """A model behind an OpenAI-compatible endpoint (OpenAI, vLLM, llama.cpp, Ollama, text-
    embeddings-inference and others). Needs the extra ``endpoint``. Safe to use from several
    threads; a context manager."""

    def __init__(
        self,
        model: str,
        dimension: int,
        *,
        base_url: str = OPENAI_URL,
        api_key: str | None = None,
        name: str = "",
        min_score: float = UNCALIBRATED_MIN_SCORE,
        shorten: bool = False,
        batch: int = BATCH,
        connect_s: float = 1.0,
        read_s: float = 30.0,
        retries: int = 3,
        backoff_s: float = 0.5,
        max_characters: int = 8_000,
    ) -> None:
        """``model`` as the endpoint calls it, ``dimension`` of its vectors (checked with each
        answer); ``name`` is that of the generation in the store, the model's unless given.

        ``base_url`` ends before "/embeddings"; its query string, if it has one, stays at the end.
        Redirects are not followed: the key is for nobody else. ``api_key`` None = from the
        environment variable OPENAI_API_KEY; "" = none is sent. ``min_score``: find it with
        ``memsvc calibrate``. ``shorten`` asks the endpoint for vectors of ``dimension`` numbers,
        for models that have more. At most ``batch`` texts go into a request, each cut after
        ``max_characters``.

        A request may take ``connect_s`` and ``read_s`` seconds; an answer that comes in drops,
        twice that. It is tried again ``retries`` times after a timeout, a 5xx or a 429: after
        ``backoff_s``, then twice as long each time, with jitter, or when Retry-After says (at most
        30 seconds).

        EmbedderMissing when the extra is not installed, ValueError for what cannot be.
        """
        try:
            import httpx
        except ImportError as error:
            raise EmbedderMissing(
                "an embedding endpoint needs httpx: pip install 'memsvc[endpoint]'"
            ) from error
        if not model:
            raise ValueError("model: expected the name of a model")
        if not 1 <= dimension <= MAX_DIMENSION:
            raise ValueError(f"dimension: expected 1 to {MAX_DIMENSION}, not {dimension}")
        try:
            url = httpx.URL(base_url)
        except (httpx.InvalidURL, TypeError):
            url = httpx.URL("")
        if url.scheme not in ("http", "https") or not url.host:
            raise ValueError(f"base_url: expected http://... or https://..., not {base_url!r}")
        if batch < 1 or retries < 0 or max_characters < 1:
            raise ValueError("batch and max_characters: expected 1 or more; retries: 0 or more")
        self.name = name or model
        self.dimension = dimension
        self.min_score = min_score
        self._model = model
        self._shorten = shorten
        self._batch = batch
        self._retries = retries
        self._backoff_s = backoff_s
        self._max_characters = max_characters
        path, mark, query = url.raw_path.decode().partition("?")
        path = path.rstrip("/") + "/embeddings"
        self._url = url.copy_with(raw_path=f"{path}{mark}{query}".encode(), fragment=None)
        shown, userinfo = str(url.copy_with(raw_path=path.encode(), fragment=None)), url.userinfo
        if userinfo:
            shown = shown.replace(f"{userinfo.decode()}@", f"{url.username}:***@")
        self._shown = shown
        given = os.environ.get(KEY_VARIABLE, "") if api_key is None else api_key
        # With the line break of the file it came from, an error of the library would show it.
        key = given.strip()
        if not (key.isascii() and (key.isprintable() or not key)):
            raise ValueError("api_key: expected printable ASCII characters")
        hidden = [value for _, value in url.params.multi_items() if len(value) >= LEAST_SECRET]
        self._secrets = [one for one in (key, url.password, *hidden) if one]
        self._longest_s = connect_s + read_s
        self._client: httpx.Client = httpx.Client(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(read_s, connect=connect_s, pool=read_s),
            limits=httpx.Limits(max_connections=8, max_keepalive_connections=4),
        )
        self._broken: tuple[type[Exception], ...] = (
            httpx.RequestError,
            httpx.StreamError,
            TimeoutError,
        )
        # Replaced by tests.
        self._sleep: Callable[[float], object] = time.sleep
        self._random: Callable[[], float] = random.random

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """One row for each text. A text without any content is embedded as a space.

        Raises TextRefused when the endpoint says that the request is at fault (400, 413, 422),
        EmbedderUnavailable after the retries, EmbedderError for everything else: a wrong key, an
        unknown model, vectors of another dimension.
        """
        cut = [_sendable(text[: self._max_characters]) for text in texts]
        parts = [
            self._vectors(cut[start : start + self._batch])
            for start in range(0, len(cut), self._batch)
        ]
        empty = np.empty((0, self.dimension), dtype=np.float32)
        return np.concatenate(parts) if parts else empty

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _vectors(self, texts: Sequence[str]) -> NDArray[np.float32]:
        body: dict[str, Any] = {
            "model": self._model,
            "input": list(texts),
            "encoding_format": "float",
        }
        if self._shorten:
            body["dimensions"] = self.dimension
        attempt = 0
        while True:
            asked = None
            try:
                answer, content = self._asked(body, len(texts))
            except self._broken as error:
                trouble = self._told(f"{type(error).__name__} {error}")
            else:
                if answer.status_code == 200:
                    return self._rows(content, len(texts))
                trouble = self._told_of(answer.status_code, content)
                if answer.status_code in _TEXT_AT_FAULT:
                    raise TextRefused(trouble)
                if answer.has_redirect_location:
                    to = self._hidden(answer.headers["Location"][:_SHOWN])
                    raise EmbedderError(
                        f"{trouble} redirects to {to}, which is not followed; set base_url to "
                        "where the model is"
                    )
                if answer.status_code not in _LATER and answer.status_code < 500:
                    raise EmbedderError(f"{trouble}; check base_url, model and {KEY_VARIABLE}")
                asked = _retry_after_s(answer.headers.get("Retry-After"), time.time())
            attempt += 1
            pause = asked if asked is not None else backoff_s(attempt, self._backoff_s, inf)
            if attempt > self._retries or pause > MAX_PAUSE_S:
                raise EmbedderUnavailable(trouble)
            self._sleep(pause * (1 + self._random() / 2))

    def _asked(self, body: dict[str, Any], count: int) -> tuple[httpx.Response, bytes]:
        """The answer and what is in it. TimeoutError when it does not end: the time limits of the
        library are for each piece that comes."""
        end = time.monotonic() + self._longest_s
        most = ROOM_BYTES + count * self.dimension * NUMBER_BYTES
        content = bytearray()
        with self._client.stream("POST", self._url, json=body) as answer:
            for piece in answer.iter_bytes():
                content += piece
                if len(content) > most:
                    raise EmbedderError(self._told(f"the answer has more than {most:,} bytes"))
                if time.monotonic() > end:
                    raise TimeoutError(f"no whole answer in {self._longest_s:g} s")
        return answer, bytes(content)

    def _rows(self, content: bytes, count: int) -> NDArray[np.float32]:
        """The vectors in the order of the texts, whatever order they came in."""
        try:
            data = sorted(json.loads(content)["data"], key=lambda one: int(one["index"]))
            if [one["index"] for one in data] != list(range(count)):
                raise ValueError(f"{len(data)} vectors for {count} texts")
            rows = np.array([one["embedding"] for one in data], dtype=np.float32)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise EmbedderError(
                f"{self._told_of(200, content)}: not an embeddings answer"
            ) from error
        if rows.shape != (count, self.dimension):
            found = rows.shape[1] if rows.ndim == 2 else "?"
            raise EmbedderError(
                self._told(
                    f"vectors of {self._model!r} have {found} numbers, not {self.dimension}; "
                    "correct the dimension, or let the endpoint shorten them"
                )
            )
        return rows

    def _told_of(self, status: int, content: bytes) -> str:
        said = content[: 4 * _SHOWN].decode(errors="replace")[:_SHOWN]
        return self._told(f"{status} {said}")

    def _told(self, what: str) -> str:
        """Who said what; without the key, which endpoints and addresses repeat."""
        return self._hidden(f"{self._shown}: {what}".rstrip())

    def _hidden(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


def _sendable(text: str) -> str:
    return text.strip().encode(errors="replace").decode() or " "


def _retry_after_s(value: str | None, now: float) -> float | None:
    """Retry-After in seconds from now: a number, or an HTTP date; None for anything else."""
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - now
        except ValueError:
            return None
    return seconds if 0 <= seconds < float("inf") else 0.0
