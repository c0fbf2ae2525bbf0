"""A server with tokens and secrets in it, cases drawn by a seed, and what every answer and
the server itself must keep to."""

from __future__ import annotations

import itertools
import json
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import grpc
import httpx
from google.rpc import error_details_pb2, status_pb2

from memsvc.domain.errors import Code
from memsvc.http.problems import REASON_STATUSES, STATUSES
from memsvc.service.tokens_edit import add_token
from memsvc.v1 import memory_service_pb2 as pb
from tests.hostile import (  # noqa: F401  (they register their cases)
    hostile_names,
    hostile_reads,
    hostile_writes,
    wire_grpc,
    wire_http,
)
from tests.hostile.case import (
    AGENT,
    FOREIGN,
    MUTATIONS,
    TENANT,
    VICTIM,
    WIRE,
    Case,
    Facts,
    Mutation,
    good,
)
from tests.hostile.encode import body, message
from tests.scenarios.harness import Node, namespace

HEADER = "x-memory-token"
OWN = ["read", "write", "forget"]
ALL = [*OWN, "admin", "review"]
TRACES = re.compile(
    rb'Traceback|site-packages|File "|memsvc[/\\](rpc|http|service|store|domain)|\.py\b|/tmp/'
)


# -- drawing cases -------------------------------------------------------------------------


def draw(seed: int, count: int, facts: Facts) -> Iterator[Case]:
    """Cases of a seed; the same ones each time for the same facts. All kinds come once
    before chance alone decides."""
    random = Random(seed)
    kinds: list[Any] = [*MUTATIONS, *(make for _, make in WIRE)]
    weights = [m.weight for m in MUTATIONS] + [weight for weight, _ in WIRE]
    first = [kind for kind, weight in zip(kinds, weights, strict=True) if weight >= 0.1]
    random.shuffle(first)
    for number in range(count):
        kind = first[number] if number < len(first) else random.choices(kinds, weights)[0]
        if isinstance(kind, Mutation):
            yield _spoilt(kind, random, facts)
        else:
            yield kind(random, facts)


def _spoilt(kind: Mutation, random: Random, facts: Facts) -> Case:
    document = good(kind.call, random)
    expect = kind.change(document, random, facts)
    protocol = random.choice(kind.protocols)
    if protocol == "grpc":
        data = message(kind.call, document, random).SerializeToString()
        path = f"/memsvc.v1.MemoryService/{kind.call}"
        return Case(kind.name, "grpc", path, data, expect, token=kind.token)
    path = f"/v1/memory/{kind.call.lower()}"
    return Case(kind.name, "http", path, body(document), expect, wire_http.JSON, kind.token)


# -- asking --------------------------------------------------------------------------------


@dataclass
class Answer:
    """What came back: code and reason as in gRPC, fields named, HTTP status, and all of it."""

    code: str
    reason: str = ""
    fields: list[str] = field(default_factory=list)
    status: int = 0
    text: bytes = b""


class Client:
    """A connection over each protocol, for one thread."""

    def __init__(self, node: Node, facts: Facts) -> None:
        self._facts = facts
        self._port = node.http_port
        self._channel = grpc.insecure_channel(
            f"127.0.0.1:{node.port}",
            options=[
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.max_send_message_length", 1 << 26),
            ],
        )
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{node.http_port}", timeout=60)

    def close(self) -> None:
        self._channel.close()
        self._http.close()

    def ask(self, case: Case) -> Answer:
        """Sends a case as it is."""
        token = self._facts.tokens[case.token] if case.token else ""
        if case.method == "RAW":
            return self._raw(case.body.replace(b"TOKEN", token.encode()))
        if case.protocol == "http":
            return self._post(case, token)
        return self._call(case, token)

    def _call(self, case: Case, token: str) -> Answer:
        metadata = ((HEADER, token),) if token else ()
        call = self._channel.unary_unary(case.path)
        try:
            answer: bytes = call(case.body, timeout=case.timeout, metadata=metadata)
        except grpc.RpcError as error:
            found = Answer(error.code().name, text=(error.details() or "").encode())
            for key, value in error.trailing_metadata() or ():
                found.text += value if isinstance(value, bytes) else value.encode()
                if key == "grpc-status-details-bin":
                    _read_details(value, found)
            return found
        return Answer("OK", text=answer)

    def _post(self, case: Case, token: str) -> Answer:
        headers = [(name.encode(), value.encode("latin-1")) for name, value in case.headers]
        if token:
            headers.append((HEADER.encode(), token.encode()))
        request = self._http.build_request(case.method, "/", content=case.body, headers=headers)
        request.url = request.url.copy_with(raw_path=case.path.encode())
        response = self._http.send(request)
        whole = response.content + str(response.headers).encode()
        if response.status_code == 200:
            return Answer("OK", status=200, text=whole)
        document: dict[str, Any] = json.loads(response.content)
        assert document["status"] == response.status_code
        return Answer(
            document["code"],
            document["reason"],
            [violation["field"] for violation in document.get("violations", [])],
            response.status_code,
            whole,
        )

    def _raw(self, data: bytes) -> Answer:
        with socket.create_connection(("127.0.0.1", self._port), timeout=30) as opened:
            try:
                opened.sendall(data)
                opened.shutdown(socket.SHUT_WR)
                text = b"".join(iter(lambda: opened.recv(65_536), b""))
            except ConnectionError:
                return Answer("RESET")  # closed with bytes of ours unread
        status = int(text[9:12]) if text.startswith(b"HTTP/1.1 ") else 0
        return Answer("HTTP", status=status, text=text)


def _read_details(value: bytes, found: Answer) -> None:
    for detail in status_pb2.Status.FromString(value).details:
        info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
        if detail.Unpack(info):
            found.reason = info.reason
        elif detail.Unpack(bad):
            found.fields += [violation.field for violation in bad.field_violations]


# -- judging -------------------------------------------------------------------------------


def problem(case: Case, answer: Answer, facts: Facts) -> str:
    """What is wrong with an answer; empty when nothing is."""
    if case.expect is wire_http.BROKEN:
        told = _leak(answer.text, facts)
        return told or ("" if answer.status in (0, 400, 408, 413) else f"status {answer.status}")
    if answer.code == "RESET":
        return "" if case.method == "RAW" else "the connection was reset"
    expect, said = case.expect, f"{answer.code} {answer.reason} {answer.fields} {answer.status}"
    said += f" {answer.text[:300]!r}"
    if answer.code != expect.code or expect.reason not in (answer.reason, "*"):
        return f"expected {expect}, got {said}"
    if expect.fields and not any(f.startswith(expect.fields) for f in answer.fields):
        return f"expected a violation of {expect.fields}, got {said}"
    if case.protocol == "http" and answer.status != _status(case):
        return f"expected status {_status(case)}, got {said}"
    return _leak(answer.text, facts, stranger=case.token in (None, "unknown", "expired"))


def _status(case: Case) -> int:
    expect = case.expect
    if expect.status or expect.code == "OK":
        return expect.status or 200
    return REASON_STATUSES.get(expect.reason) or STATUSES[Code(expect.code)]


def _leak(text: bytes, facts: Facts, stranger: bool = False) -> str:
    secrets = facts.secrets + ([facts.store_id] if stranger else [])
    for secret in secrets:
        if secret.encode() in text:
            return f"{secret} was told in {text[:500]!r}"
    trace = TRACES.search(text)
    return f"{trace.group()!r} was told in {text[:500]!r}" if trace else ""


# -- the attacked server -------------------------------------------------------------------


class Fortress:
    """A server with memories of two tenants, under attack by one of them."""

    def __init__(self, folder: Path) -> None:
        self.facts = Facts()
        self.node = Node(
            folder,
            auth__mode="token",
            auth__tokens_file=str(folder / "tokens.yaml"),
            server__read_timeout_ms=60_000,
            server__write_timeout_ms=60_000,
            log__level="warning",
        )
        tokens, file = self.facts.tokens, folder / "tokens.yaml"
        for name, prefix, rights in (
            ("root", "*", ALL),
            ("own", TENANT, OWN),
            ("reader", TENANT, ["read"]),
            ("foreign", FOREIGN, ALL),
        ):
            tokens[name] = add_token(file, name, [prefix], rights)
        tokens["expired"] = add_token(file, "expired", ["*"], ALL, expires_at=1)
        tokens["unknown"] = "ms_" + "A" * 43
        tokens["long"] = "ms_" + "A" * 4_000
        tokens["prefix"] = tokens["root"][:-1]

    def start(self) -> Fortress:
        """Starts the server and fills it."""
        self.node.start()
        self.pid = self.node.pid
        facts = self.facts
        secret = itertools.count()

        def item(**more: Any) -> pb.WriteItem:
            word = f"canary{next(secret)}z"
            facts.secrets.append(word)
            made = pb.Memory(content=f"the {word} sings", dedup_key=word, summary=word, **more)
            made.metadata.topic = word
            made.metadata.attributes[word].string_value = word
            return pb.WriteItem(memory=made)

        foreign = self._write(FOREIGN, AGENT, [item() for _ in range(20)], session="canary99z")
        facts.secrets.append("canary99z")
        facts.foreign_ids = [result.id for result in foreign.results]
        hidden = self._write(TENANT, VICTIM, [item(status="STATUS_ARCHIVED") for _ in range(5)])
        facts.hidden_ids = [result.id for result in hidden.results]
        plain = [
            pb.WriteItem(memory=pb.Memory(content=f"number{n} of the victim")) for n in range(20)
        ]
        written = self._write(TENANT, VICTIM, plain)
        facts.own_ids = [result.id for result in written.results]
        facts.position = written.position
        # The ids that stand in requests may be named in answers; texts never.
        page = self._query(TENANT, VICTIM, mode=pb.MODE_BROWSE, top_k=3)
        facts.page_token = page.next_page_token
        self._write(
            TENANT, AGENT, [pb.WriteItem(memory=pb.Memory(content="first"))], request_id="taken"
        )
        self._stub().Forget(
            pb.ForgetRequest(
                namespace=namespace(TENANT, VICTIM),
                ids=["00000000-0000-7000-8000-000000000000"],
                request_id="taken",
            ),
            metadata=self._root,
        )
        facts.store_id = self._stub().Health(pb.HealthRequest(), metadata=self._root).store_id
        self._before = self._picture()
        return self

    @property
    def _root(self) -> tuple[tuple[str, str], ...]:
        return ((HEADER, self.facts.tokens["root"]),)

    def _stub(self) -> Any:
        return self.node.stub()

    def _write(
        self, tenant: str, agent: str, items: list[pb.WriteItem], session: str = "", **more: Any
    ) -> Any:
        request = pb.WriteRequest(namespace=namespace(tenant, agent, session), items=items, **more)
        return self._stub().Write(request, metadata=self._root)

    def _query(self, tenant: str, agent: str, **more: Any) -> Any:
        request = pb.QueryRequest(namespace=namespace(tenant, agent), **more)
        return self._stub().Query(request, metadata=self._root)

    def _picture(self) -> dict[str, Any]:
        """Everything that no case may change, and the names of all memories of the sink."""
        found = {}
        everything = {"mode": pb.MODE_BROWSE, "top_k": 200, "include": pb.Include(content=True)}
        for tenant, agent in ((TENANT, VICTIM), (FOREIGN, AGENT)):
            hits = self._query(tenant, agent, **everything).items
            assert hits
            for hit in hits:
                hit.metadata.ClearField("importance")  # it decays
            found[f"{tenant}/{agent}"] = [hit.SerializeToString(deterministic=True) for hit in hits]
            ids = self.facts.hidden_ids
            root = self._query(tenant, agent, ids=ids)
            found[f"{tenant}/{agent} hidden"] = len(root.items)
        return found

    def attack(self, seed: int, count: int, threads: int = 2) -> dict[str, int]:
        """Sends that many cases. Fails with the seed and number of the first that went
        wrong; returns how many there were of each protocol and code."""
        numbered = enumerate(draw(seed, count, self.facts))
        lock, failures = threading.Lock(), list[str]()
        tally: dict[str, int] = {}

        def work() -> None:
            client = Client(self.node, self.facts)
            try:
                while not failures:
                    with lock:
                        number, case = next(numbered, (0, None))
                    if case is None:
                        return
                    try:
                        answer = client.ask(case)
                        wrong = problem(case, answer, self.facts)
                    except Exception as error:
                        wrong, answer = f"{type(error).__name__}: {error}", Answer("NONE")
                    with lock:
                        key = f"{case.protocol} {answer.code}"
                        tally[key] = tally.get(key, 0) + 1
                        if wrong:
                            sent = f"{case.path} {case.body[:400]!r}"
                            where = f"seed {seed}, case {number}, {case.protocol}: {case.name}"
                            failures.append(f"{where}\nsent {sent}\n{wrong}")
            finally:
                client.close()

        workers = [threading.Thread(target=work) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert not failures, "\n\n".join(failures) + "\n" + self.node.log_tail()
        return tally

    def check(self) -> None:
        """The same process, nothing changed that must not, and nothing in the log."""
        assert self.node.process is not None
        assert self.node.process.poll() is None, self.node.log_tail()
        assert self.node.pid == self.pid
        assert self._picture() == self._before
        stored = self._query(TENANT, AGENT, mode=pb.MODE_BROWSE, top_k=200)
        for hit in stored.items:
            assert "must not be stored" not in hit.summary
        log = self.node.log_file.read_text(errors="replace")
        for bad in ("Traceback", "incident", "ERROR"):
            assert bad not in log, self.node.log_tail(200)
        for secret in self.facts.secrets:
            assert secret not in log

    def close(self) -> None:
        self.node.close()
