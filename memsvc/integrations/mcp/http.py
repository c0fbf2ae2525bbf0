"""Streamable HTTP for the MCP server: loopback, or behind a token."""

from __future__ import annotations

import hmac
from typing import Any, Final

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from memsvc.domain.addresses import ListenAddress, split_listen
from memsvc.integrations.mcp.protocol import TimedProtocol

PATH: Final = "/mcp"
MAX_BODY_BYTES: Final = 256 * 1024
"""Largest request; the largest input of a tool has some 20 KB."""
MAX_CONNECTIONS: Final = 100
MIN_TOKEN: Final = 16
"""Characters of a token, at least."""
STOP_S: Final = 5
"""Longest wait for running calls at the end, seconds."""


class Listen:
    """Where to listen. ``str()`` is the URL."""

    def __init__(self, text: str, *, tls: bool = False) -> None:
        """``text`` is host:port or [v6]:port; ValueError says what is wrong with it."""
        host, port = split_listen(text, 8850)
        if not host or not (port.isascii() and port.isdigit()):
            raise ValueError(f"expected HOST:PORT, as in 127.0.0.1:8850, not {text!r}")
        if not 1 <= int(port) <= 65_535:
            raise ValueError(f"the port is a number from 1 to 65535, not {port}")
        self.address, self.tls = ListenAddress(host, int(port)), tls

    def __str__(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.address}{PATH}"


def check_token(listen: Listen, token: str) -> None:
    """ValueError when anybody could connect without a token, or the token is too short."""
    if not token and not listen.address.is_loopback:
        raise ValueError(
            f"{listen.address.host} can be reached from other machines, and there is no token: "
            "everyone who can connect could read and erase the memory"
        )
    if token and not (len(token) >= MIN_TOKEN and token.isascii() and token.isprintable()):
        raise ValueError(f"the token needs {MIN_TOKEN} or more printable ASCII characters")


class TokenGate:
    """Lets calls with ``Authorization: Bearer TOKEN`` through, and answers 401 to others."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._wanted = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._allowed(scope):
            refusal = PlainTextResponse(
                "A bearer token is needed: Authorization: Bearer ...\n",
                status_code=401,
                headers={"WWW-Authenticate": "Bearer"},
            )
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _allowed(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) != 1:
            return False
        scheme, _, token = given[0].partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._wanted)


def make_app(server: MCPServer[Any], listen: Listen, token: str) -> ASGIApp:
    """The ASGI application. Without sessions: every request stands alone, so that a restart is
    not noticed and several servers can stand behind one address."""
    # A page that a browser has loaded must not reach a server on this machine, by its own origin
    # or by a name that is made to point here.
    names = ["127.0.0.1", "localhost", "[::1]"]
    if listen.address.is_loopback and listen.address.host not in ("127.0.0.1", "localhost", "::1"):
        names.append(listen.address.host)
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=listen.address.is_loopback,
        allowed_hosts=[f"{name}:*" for name in names],
        allowed_origins=[f"{scheme}://{name}:*" for name in names for scheme in ("http", "https")],
    )
    app: ASGIApp = server.streamable_http_app(
        streamable_http_path=PATH,
        json_response=True,
        stateless_http=True,
        max_request_body_size=MAX_BODY_BYTES,
        transport_security=security,
        host=listen.address.host,
    )
    return TokenGate(app, token) if token else app


def serve_http(
    server: MCPServer[Any], listen: Listen, token: str, *, cert_file: str = "", key_file: str = ""
) -> None:
    """Serves until SIGTERM or SIGINT. ``token`` "" = none is wanted (loopback only).
    SystemExit when the address cannot be listened on."""
    check_token(listen, token)
    uvicorn.run(
        make_app(server, listen, token),
        host=listen.address.host,
        port=listen.address.port,
        http=TimedProtocol,
        log_level="warning",
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=STOP_S,
        server_header=False,
        ssl_certfile=cert_file or None,
        ssl_keyfile=key_file or None,
    )
