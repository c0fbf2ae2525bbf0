"""The HTTP/JSON interface: the same calls, checks and measures as over gRPC.

The event loop only moves bytes. A call is parsed, answered and rendered in a thread of the
pool that it shares with gRPC.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from memsvc.config import Settings, parse_listen
from memsvc.domain.errors import (
    Cancelled,
    InvalidArgument,
    MemsvcError,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
)
from memsvc.http import models, openapi, problems, render
from memsvc.service import logs
from memsvc.service.access import Gate, Principal
from memsvc.service.api import Control
from memsvc.service.edge import log_incident
from memsvc.service.limits import CallPool, Timeouts, timeouts_of
from memsvc.service.metrics import CONTENT_TYPE
from memsvc.service.traces import NoTracing, Tracing

BODY_SECONDS: Final = 10.0
"""Longest time that a request body may take to arrive."""

Work = Callable[[Principal, bytes, Control], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class AppOptions:
    """How to serve. Sizes in bytes. ``loopback`` tells that only programs of this machine
    can connect, and so that a host name other than this machine's is an attack."""

    max_body_bytes: int = 16 * 1024 * 1024
    loopback: bool = True
    version: str = ""
    timeouts: Callable[[], Timeouts] = field(default=Timeouts)

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        version: str,
        current: Callable[[], Settings] | None = None,
    ) -> AppOptions:
        """``current`` gives the settings in force after a reload."""
        listen = settings.server.http_listen
        return cls(
            max_body_bytes=settings.server.max_message_bytes,
            loopback=bool(listen) and parse_listen(listen).is_loopback,
            version=version,
            timeouts=timeouts_of(current or (lambda: settings)),
        )


class HttpApp:
    """Builds the Starlette application; ``app`` is what a server serves."""

    def __init__(
        self,
        gate: Gate,
        pool: CallPool,
        options: AppOptions | None = None,
        *,
        tracing: Tracing | None = None,
        routes: Sequence[BaseRoute] = (),
    ) -> None:
        self._gate = gate
        self._pool = pool
        self._options = options or AppOptions()
        self._tracing = tracing or NoTracing()
        self.draining = False
        self.others_serve: Callable[[], bool] = lambda: True
        """Whether the processes that answer beside this one do; ``/readyz`` is about all."""
        timeouts = self._options.timeouts
        self.app = Starlette(
            routes=[
                self._post("write", "Write", self._write, lambda: timeouts().write_ms),
                self._post("query", "Query", self._query, lambda: timeouts().read_ms),
                self._post("forget", "Forget", self._forget, lambda: timeouts().write_ms),
                Route("/v1/memory/health", self._health, methods=["GET"]),
                Route("/openapi.json", self._openapi, methods=["GET"]),
                Route("/metrics", self._metrics, methods=["GET"]),
                Route("/healthz", self._healthz, methods=["GET"]),
                Route("/readyz", self._readyz, methods=["GET"]),
                *routes,
            ],
            exception_handlers={HTTPException: self._http_exception},
        )
        # A redirect would name whatever host the caller put into the Host header.
        self.app.router.redirect_slashes = False

    def _write(self, principal: Principal, body: bytes, control: Control) -> dict[str, Any]:
        request = models.read_write(body)
        return render.write_object(self._gate.write(principal, request, control))

    def _query(self, principal: Principal, body: bytes, control: Control) -> dict[str, Any]:
        request = models.read_query(body)
        return render.query_object(self._gate.query(principal, request, control))

    def _forget(self, principal: Principal, body: bytes, control: Control) -> dict[str, Any]:
        request = models.read_forget(body)
        return render.forget_object(self._gate.forget(principal, request, control))

    def _post(self, path: str, name: str, work: Work, most_ms: Callable[[], int]) -> Route:
        async def endpoint(request: Request) -> Response:
            return await self._call(request, name, work, most_ms())

        return Route(f"/v1/memory/{path}", endpoint, methods=["POST"])

    async def _call(self, request: Request, name: str, work: Work, most_ms: int) -> Response:
        started = time.perf_counter()
        deadline = time.monotonic() + most_ms / 1_000
        request_id = logs.request_id(request.headers.get("x-request-id"))
        token_name = ""
        code = "INTERNAL"
        self._gate.metrics.active_calls.inc()
        try:
            self._check_host(request)
            principal = self._admit(request)
            token_name = principal.name
            body = await self._body(request)
            answer = await self._in_pool(request, name, work, principal, body, deadline)
            code = "OK"
            response = _json(answer)
        except MemsvcError as error:
            code = error.code.value
            self._gate.failed(error)
            response = self._problem(error, request, request_id)
        except Exception:
            self._gate.failed(None)
            found = problems.internal(log_incident(name), request.url.path, request_id)
            response = _problem_response(found)
        finally:
            self._gate.metrics.active_calls.dec()
            seconds = time.perf_counter() - started
            self._gate.metrics.call(name, code, seconds)
            logs.access(
                request_id=request_id,
                call=name,
                code=code,
                seconds=seconds,
                token=token_name,
                protocol="http",
            )
        response.headers["X-Request-Id"] = request_id
        return response

    def _admit(self, request: Request) -> Principal:
        if self.draining:
            raise Unavailable(
                "the node is shutting down", reason="SHUTTING_DOWN", retry_after_ms=1_000
            )
        # Before the body is read, so that a caller without a token cannot send one.
        principal = self._gate.access.authenticate(self._token(request))
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        encoding = request.headers.get("content-encoding", "identity").lower()
        if media != "application/json" or encoding != "identity":
            # Also keeps web pages out: a browser sends other types without asking first.
            raise InvalidArgument(
                "the body must be application/json, not compressed",
                reason="CONTENT_TYPE",
                hint="Send the header Content-Type: application/json.",
            )
        if self._pool.full:
            raise self._pool.refusal()
        if request.client:
            self._gate.metrics.peers.saw(f"http:{request.client.host}:{request.client.port}")
        return principal

    def _token(self, request: Request) -> str | None:
        return request.headers.get(self._gate.access.header)

    def _check_host(self, request: Request) -> None:
        # A web page whose host name was turned to 127.0.0.1 (DNS rebinding) could otherwise
        # call a node without tokens from the browser of whoever opens it.
        if not (self._options.loopback and self._gate.access.open):
            return
        host = request.url.hostname or ""
        if host != "localhost" and not _is_address(host):
            raise PermissionDenied(
                "this node serves its own machine only",
                reason="HOST_REFUSED",
                hint="Call it as localhost or 127.0.0.1, or turn on auth.mode: token.",
            )

    async def _body(self, request: Request) -> bytes:
        most = self._options.max_body_bytes
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared[:19]) > most:
            raise _too_large(most)
        try:
            async with asyncio.timeout(BODY_SECONDS):
                chunks: list[bytes] = []
                size = 0
                async for chunk in request.stream():
                    size += len(chunk)
                    if size > most:
                        raise _too_large(most)
                    chunks.append(chunk)
        except TimeoutError:
            raise InvalidArgument(
                f"the body did not arrive within {BODY_SECONDS:g} s", reason="BODY_TIMEOUT"
            ) from None
        except ClientDisconnect:
            raise Cancelled("the caller went away") from None
        return b"".join(chunks)

    async def _in_pool(
        self,
        request: Request,
        name: str,
        work: Work,
        principal: Principal,
        body: bytes,
        deadline: float,
    ) -> bytes:
        gone: list[bool] = []
        control = Control(deadline, lambda: bool(gone))
        headers = dict(request.headers)

        def run() -> bytes:
            with self._tracing.span(f"memsvc/{name}", headers) as span:
                try:
                    answer = render.dumps(work(principal, body, control))
                except MemsvcError as error:
                    span.set("rpc.response.status_code", error.code.value)
                    raise
                span.set("rpc.response.status_code", "OK")
                return answer

        future = asyncio.get_running_loop().run_in_executor(self._pool, run)
        # After the body the only message left is that the caller went away.
        watch: asyncio.Future[Any] = asyncio.ensure_future(request.receive())
        try:
            await asyncio.wait({future, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not future.done():
                gone.append(True)
            return await future
        except asyncio.CancelledError:
            gone.append(True)
            raise
        finally:
            watch.cancel()
            # It may hold an error, whose traceback holds this frame, which holds the body.
            del future

    async def _health(self, request: Request) -> Response:
        try:
            self._check_host(request)
        except MemsvcError as error:
            return self._problem(error, request, logs.request_id(None))
        principal = self._gate.access.identify(self._token(request))
        whole = principal is not None
        return _json(render.dumps(render.health_object(self._gate.health(), whole)))

    async def _healthz(self, _request: Request) -> Response:
        return _json(b'{"alive":true}')

    async def _readyz(self, _request: Request) -> Response:
        ready = self._gate.health().ready and not self.draining and self.others_serve()
        return _json(render.dumps({"ready": ready}), 200 if ready else 503)

    async def _openapi(self, _request: Request) -> Response:
        return _json(await asyncio.to_thread(lambda: self._spec))

    @cached_property
    def _spec(self) -> bytes:
        access = self._gate.access
        return render.dumps(openapi.document(self._options.version, access.header, not access.open))

    async def _metrics(self, request: Request) -> Response:
        bearer = request.headers.get("authorization", "")
        # Scrapers can send this header and mostly no other one.
        token = bearer[7:].strip() if bearer[:7].lower() == "bearer " else self._token(request)
        try:
            self._check_host(request)
            self._gate.access.authenticate(token)
        except MemsvcError as error:
            return self._problem(error, request, logs.request_id(None))
        return await metrics_response(self._gate)

    async def _http_exception(self, request: Request, raised: Exception) -> Response:
        assert isinstance(raised, HTTPException)
        error: MemsvcError
        if raised.status_code == 405:
            error = InvalidArgument(
                f"{request.method} is not a method of this path", reason="METHOD_NOT_ALLOWED"
            )
        elif raised.status_code == 404:
            error = NotFound(
                "no such path", reason="NO_SUCH_PATH", hint="See /openapi.json for all paths."
            )
        else:
            error = InvalidArgument("the request was refused", reason="MALFORMED_REQUEST")
        request_id = logs.request_id(request.headers.get("x-request-id"))
        response = self._problem(error, request, request_id)
        response.headers.update(raised.headers or {})
        return response

    def _problem(self, error: MemsvcError, request: Request, request_id: str) -> Response:
        header = self._gate.access.header
        return _problem_response(
            problems.problem(error, request.url.path[:200], request_id, header)
        )


async def metrics_response(gate: Gate) -> Response:
    """What a scraper reads, made in a thread: it asks the whole node."""
    text = await asyncio.to_thread(gate.metrics.exposition)
    return Response(text, media_type=CONTENT_TYPE)


def metrics_app(gate: Gate) -> Starlette:
    """An application of /metrics alone, for ``metrics.listen``; asks for no token."""

    async def endpoint(_request: Request) -> Response:
        return await metrics_response(gate)

    return Starlette(routes=[Route("/metrics", endpoint, methods=["GET"])])


def _json(body: bytes, status: int = 200) -> Response:
    return Response(body, status, {"Cache-Control": "no-store"}, media_type="application/json")


def _problem_response(found: problems.Problem) -> Response:
    return Response(found.body, found.status, found.headers, media_type=problems.MEDIA_TYPE)


def _too_large(most: int) -> ResourceExhausted:
    return ResourceExhausted(
        f"the body is larger than {most} bytes",
        reason="BODY_TOO_LARGE",
        hint="Send fewer items at a time, or raise server.max_message_bytes.",
    )


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
