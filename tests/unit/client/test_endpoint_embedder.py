"""The embedder of an OpenAI-compatible endpoint, against a small server of that kind."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from memsvc.client.embedders import (
    EmbedderError,
    EmbedderMissing,
    EmbedderUnavailable,
    EndpointEmbedder,
    HashingEmbedder,
    TextRefused,
    embed_each,
)
from memsvc.client.embedders.endpoint import NUMBER_BYTES, _retry_after_s

DIMENSION = 16
MODEL = HashingEmbedder(DIMENSION)
Reply = tuple[int, dict[str, str], Any]


def good(body: Any) -> Reply:
    rows = MODEL.embed(body["input"]).tolist()
    data = [{"index": n, "embedding": row} for n, row in enumerate(rows)]
    return 200, {}, {"data": data[::-1]}  # in no particular order


class Endpoint:
    """Answers as ``scripted`` say, one after the other, then well."""

    def __init__(self) -> None:
        self.scripted: list[Reply] = []
        self.answer: Callable[[Any], Reply] = good
        self.asked: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.in_drops = False
        self.given_up = threading.Event()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                assert self.path.partition("?")[0] == "/v1/embeddings"
                endpoint.paths.append(self.path)
                endpoint.asked.append(body)
                endpoint.headers.append({k.lower(): v for k, v in self.headers.items()})
                scripted = endpoint.scripted.pop(0) if endpoint.scripted else None
                status, headers, told = scripted or endpoint.answer(body)
                sent = told.encode() if isinstance(told, str) else json.dumps(told).encode()
                if endpoint.in_drops:
                    self.drop(sent)
                    return
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(sent))}.items():
                    self.send_header(name, value)
                self.end_headers()
                with contextlib.suppress(OSError):  # the client may have given up
                    self.wfile.write(sent)

            def drop(self, sent: bytes) -> None:
                """For ever, until the client has enough."""
                self.send_response(200)
                self.send_header("Content-Length", "1000000000")
                self.end_headers()
                with contextlib.suppress(OSError):
                    while not endpoint.given_up.wait(0.01):
                        self.wfile.write(b" ")

            def log_message(self, format: str, *args: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1/"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def embedder(self, **more: Any) -> EndpointEmbedder:
        settings = {"dimension": DIMENSION, "base_url": self.url, "api_key": "", **more}
        made = EndpointEmbedder("small", **settings)
        self.pauses: list[float] = []
        made._sleep = self.pauses.append
        made._random = lambda: 0.0
        return made


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    yield made
    made.given_up.set()
    made.server.shutdown()
    made.server.server_close()


def test_rows_are_in_the_order_of_the_texts_and_batches_are_kept(endpoint: Endpoint) -> None:
    texts = [f"text {n}" for n in range(50)]
    with endpoint.embedder() as embedder:
        assert np.allclose(embedder.embed(texts), MODEL.embed(texts))
        assert [len(body["input"]) for body in endpoint.asked] == [24, 24, 2]
        assert embedder.embed([]).shape == (0, DIMENSION)
    assert endpoint.asked[0] | {"input": []} == {
        "model": "small", "input": [], "encoding_format": "float",
    }  # fmt: skip


def test_the_key_comes_from_the_environment_and_is_not_sent_when_there_is_none(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k-1")
    endpoint.embedder(api_key=None, shorten=True).embed(["x"])
    monkeypatch.delenv("OPENAI_API_KEY")
    endpoint.embedder(api_key=None).embed(["x"])
    assert endpoint.headers[0]["authorization"] == "Bearer k-1"
    assert "authorization" not in endpoint.headers[1]
    assert endpoint.asked[0]["dimensions"] == DIMENSION


def test_retry_after_is_kept_and_otherwise_pauses_double(endpoint: Endpoint) -> None:
    endpoint.scripted = [(429, {"Retry-After": "7"}, ""), (503, {}, ""), (500, {}, "")]
    assert endpoint.embedder().embed(["x"]).shape == (1, DIMENSION)
    assert endpoint.pauses == [7.0, 1.0, 2.0]


def test_after_the_retries_it_is_unavailable(endpoint: Endpoint) -> None:
    endpoint.scripted = [(503, {}, "too much to do")] * 4
    with pytest.raises(EmbedderUnavailable, match="503 too much to do"):
        endpoint.embedder().embed(["x"])
    assert len(endpoint.asked) == 4
    endpoint.scripted = [(429, {"Retry-After": "3600"}, "come tomorrow")]
    with pytest.raises(EmbedderUnavailable, match="come tomorrow"):
        endpoint.embedder().embed(["x"])


def test_nobody_there_and_nobody_answering_are_unavailable(endpoint: Endpoint) -> None:
    with pytest.raises(EmbedderUnavailable, match="Connect"):
        EndpointEmbedder("m", 4, base_url="http://127.0.0.1:9", retries=0).embed(["x"])
    released = threading.Event()

    def hang(body: Any) -> Reply:
        released.wait(30)
        return good(body)

    endpoint.answer = hang
    with pytest.raises(EmbedderUnavailable, match="ReadTimeout"):
        endpoint.embedder(read_s=0.05, retries=1).embed(["x"])
    released.set()


@pytest.mark.parametrize("status", [401, 403, 404])
def test_what_retrying_does_not_mend_is_told_at_once(endpoint: Endpoint, status: int) -> None:
    endpoint.scripted = [(status, {}, '{"error": "no such model"}')]
    with pytest.raises(EmbedderError, match=r"no such model.*check base_url"):
        endpoint.embedder().embed(["x"])
    assert not endpoint.pauses


def test_one_bad_text_does_not_take_its_batch_with_it(endpoint: Endpoint) -> None:
    def picky(body: Any) -> Reply:
        if any("bad" in text for text in body["input"]):
            return 400, {}, {"error": "input is too long"}
        return good(body)

    endpoint.answer = picky
    texts = [f"text {n}" for n in range(24)]
    texts[5], texts[17] = "bad one", "another bad one"
    found = embed_each(endpoint.embedder(), texts)
    assert [n for n, row in enumerate(found) if isinstance(row, TextRefused)] == [5, 17]
    assert "too long" in str(found[5])
    expected = MODEL.embed(texts)
    assert all(np.allclose(found[n], expected[n]) for n in range(24) if n not in (5, 17))
    assert len(endpoint.asked) < 24


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({"data": [{"index": 0, "embedding": [1.0] * 8}]}, "have 8 numbers, not 16"),
        ({"data": []}, "not an embeddings answer"),
        ({"data": [{"index": 1, "embedding": [1.0] * 16}]}, "not an embeddings answer"),
        ({"data": [{"index": 0, "embedding": "AAAA"}]}, "not an embeddings answer"),
        ({"data": [{"index": 0, "embedding": [[1.0] * 16]}]}, "have . numbers"),
        ([], "not an embeddings answer"),
        ("<html>", "not an embeddings answer"),
    ],
)
def test_an_answer_of_another_shape_is_told(endpoint: Endpoint, answer: Any, told: str) -> None:
    endpoint.scripted = [(200, {}, answer)]
    with pytest.raises(EmbedderError, match=told):
        endpoint.embedder().embed(["x"])


def test_vectors_that_the_service_would_refuse_count_as_refused(endpoint: Endpoint) -> None:
    rows = [[float("nan")] * DIMENSION, [0.0] * DIMENSION, [1e30] * DIMENSION]
    data = [{"index": n, "embedding": row} for n, row in enumerate(rows)]
    endpoint.scripted = [(200, {}, {"data": data})]
    found = embed_each(endpoint.embedder(), ["a", "b", "c"])
    assert [isinstance(row, TextRefused) for row in found] == [True, True, False]


def test_a_model_of_another_dimension_than_it_states_is_an_error() -> None:
    class Lying(HashingEmbedder):
        def embed(self, texts: Any) -> Any:
            return super().embed(texts)[:, :5]

    with pytest.raises(EmbedderError, match="is the dimension that of the model"):
        embed_each(Lying(16), ["x"])


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("3", 3.0),
        ("0.5", 0.5),
        ("-1", 0.0),
        ("nan", 0.0),
        ("Thu, 01 Jan 1970 00:16:45 GMT", 5.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("soon", None),
        (None, None),
    ],
)
def test_retry_after_is_a_number_or_a_date(value: str | None, seconds: float | None) -> None:
    assert _retry_after_s(value, 1_000.0) == seconds


@pytest.mark.parametrize(
    "wrong",
    [
        {"model": ""},
        {"dimension": 0},
        {"dimension": 8_193},
        {"base_url": "localhost:8000"},
        {"batch": 0},
        {"retries": -1},
    ],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"{next(iter(wrong))}.*: (expected|0)"):
        EndpointEmbedder(**{"model": "m", "dimension": 4, **wrong})


def test_no_error_shows_the_key_or_a_password(endpoint: Endpoint) -> None:
    """Endpoints repeat the key; with the line break of a file the library's own error did."""
    embedder = endpoint.embedder(api_key="sk-4711\n", retries=0)
    for status, error in ((401, EmbedderError), (400, TextRefused), (503, EmbedderUnavailable)):
        endpoint.scripted = [(status, {}, "Incorrect API key provided: sk-4711")]
        with pytest.raises(error, match=r"provided: \*\*\*"):
            embedder.embed(["x"])
    assert endpoint.headers[0]["authorization"] == "Bearer sk-4711"
    address = endpoint.url.replace("http://", "http://me:s3cret@")
    endpoint.scripted = [(401, {}, "no")]
    with pytest.raises(EmbedderError, match=r"http://me:\*\*\*@"):
        endpoint.embedder(base_url=address).embed(["x"])


def test_an_answer_in_drops_is_waited_for_no_longer_than_one_read(endpoint: Endpoint) -> None:
    """Each drop came within the time limit of the library: the ingestor waited for ever."""
    endpoint.in_drops = True
    with pytest.raises(EmbedderUnavailable, match=r"no whole answer in 0\.3 s"):
        endpoint.embedder(connect_s=0.2, read_s=0.1, retries=0).embed(["x"])


def test_an_answer_without_end_does_not_fill_the_memory(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 10 + DIMENSION * NUMBER_BYTES
    monkeypatch.setattr("memsvc.client.embedders.endpoint.ROOM_BYTES", 10)
    row = MODEL.embed(["x"])[0].tolist()
    whole = json.dumps({"data": [{"index": 0, "embedding": row}]})
    endpoint.scripted = [(200, {}, whole.ljust(most)), (200, {}, whole.ljust(most + 1))]
    embedder = endpoint.embedder()
    assert embedder.embed(["x"]).shape == (1, DIMENSION)
    with pytest.raises(EmbedderError, match="more than 1,034 bytes"):
        embedder.embed(["x"])


def test_a_redirect_is_told_and_the_key_goes_to_nobody_else(endpoint: Endpoint) -> None:
    other = Endpoint()
    try:
        endpoint.scripted = [(307, {"Location": f"{other.url}embeddings"}, "")]
        with pytest.raises(EmbedderError, match=rf"redirects to {other.url}.*set base_url"):
            endpoint.embedder(api_key="sk-4711").embed(["x"])
        assert not other.asked
    finally:
        other.server.shutdown()
        other.server.server_close()


@pytest.mark.parametrize(
    "told",
    [
        "<html>welcome</html>",
        '{"data": [{"index": 1e999, "embedding": []}]}',
        '{"data": [{"index": 0, "embedding": [1' + "0" * 400 + "]}]}",
        "[" * 100_000,
        "null",
        "",
        '{"data": null}',
    ],
)
def test_whatever_an_endpoint_says_is_told_as_no_embeddings(endpoint: Endpoint, told: str) -> None:
    endpoint.scripted = [(200, {}, told)]
    with pytest.raises(EmbedderError, match=r"200.*not an embeddings answer"):
        endpoint.embedder().embed(["x"])


def test_a_broken_encoding_is_tried_again_and_then_unavailable(endpoint: Endpoint) -> None:
    endpoint.scripted = [(200, {"Content-Encoding": "gzip"}, "no gzip")] * 2
    with pytest.raises(EmbedderUnavailable, match="DecodingError"):
        endpoint.embedder(retries=1).embed(["x"])


def test_a_week_of_retry_after_is_not_waited_for(endpoint: Endpoint) -> None:
    endpoint.scripted = [(429, {"Retry-After": "604800"}, "later")]
    with pytest.raises(EmbedderUnavailable, match="429 later"):
        endpoint.embedder().embed(["x"])
    assert not endpoint.pauses


def test_the_query_of_the_address_stays_at_its_end_and_its_key_is_not_shown(
    endpoint: Endpoint,
) -> None:
    address = f"{endpoint.url}?api-version=2024-06-01&key=t0p-s3cret"
    embedder = endpoint.embedder(base_url=address)
    embedder.embed(["x"])
    assert endpoint.paths == ["/v1/embeddings?api-version=2024-06-01&key=t0p-s3cret"]
    endpoint.scripted = [(401, {}, "bad key t0p-s3cret")]
    with pytest.raises(EmbedderError, match=r"/v1/embeddings: 401 bad key \*\*\*;") as caught:
        embedder.embed(["x"])
    assert "s3cret" not in str(caught.value)


def test_a_password_with_marks_is_not_shown_either(endpoint: Endpoint) -> None:
    address = endpoint.url.replace("http://", "http://me:s3%40cret@")
    endpoint.scripted = [(401, {}, "no")]
    with pytest.raises(EmbedderError, match=r"http://me:\*\*\*@127"):
        endpoint.embedder(base_url=address).embed(["x"])


def test_half_a_character_does_not_stop_a_batch(endpoint: Endpoint) -> None:
    assert endpoint.embedder().embed(["nuts \ud83d", "x"]).shape == (2, DIMENSION)
    assert endpoint.asked[0]["input"] == ["nuts ?", "x"]


class Odd:
    """An embedder that gives what it is told to."""

    name, dimension, min_score = "odd", 2, 0.0

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def embed(self, texts: Sequence[str]) -> Any:
        return self.rows


def test_an_embedder_may_give_lists_and_what_is_no_array_is_told() -> None:
    (row,) = embed_each(Odd([[0.5, 0.5]]), ["x"])
    assert isinstance(row, np.ndarray) and row.dtype == np.float32
    for rows in (None, [[1.0, 2.0], [3.0]], "vectors", [[10**400, 1]], object()):
        with pytest.raises(EmbedderError, match="odd: "):
            embed_each(Odd(rows), ["x"])


def test_numbers_that_are_finite_in_float64_only_refuse_their_text_and_lose_no_chunk() -> None:
    first, second = embed_each(Odd(np.array([[1e300, 1.0], [1.0, 0.0]])), ["x", "y"])
    assert isinstance(first, TextRefused)
    assert not isinstance(second, TextRefused)


def test_without_httpx_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(EmbedderMissing, match=r"pip install 'memsvc\[endpoint\]'"):
        EndpointEmbedder("m", 4)
