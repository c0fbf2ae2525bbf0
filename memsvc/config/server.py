"""Settings of the process itself: listeners, tokens, limits, logs, metrics."""

from typing import Annotated, Literal

from annotated_types import Ge, Le
from pydantic import AfterValidator

from memsvc.config.fields import Section, check_listen, check_listen_or_off, key

Listen = Annotated[str, AfterValidator(check_listen)]
ListenOrOff = Annotated[str, AfterValidator(check_listen_or_off)]

_MIB = 1024 * 1024


class Tls(Section):
    """Transport encryption of both listeners."""

    cert_file: str = key(
        "",
        "Certificate chain of the server, PEM. Set together with key_file. Empty: connections "
        "are not encrypted. When the files are replaced, new connections are shown the new one.",
        reload=False,
        expects="a path, or empty",
    )
    key_file: str = key(
        "",
        "Private key of the certificate, PEM. Set together with cert_file.",
        reload=False,
        expects="a path, or empty",
    )
    client_ca_file: str = key(
        "",
        "Authorities whose client certificates are accepted, PEM. When set, a client without "
        "such a certificate is turned away. Empty: clients need no certificate. Needs cert_file.",
        reload=False,
        expects="a path, or empty",
    )


class Server(Section):
    """Listeners and the bounds of a call."""

    listen: Listen = key(
        "0.0.0.0:8848",
        "Address of the gRPC service. With auth.mode none and without server.allow_insecure "
        "the default becomes 127.0.0.1:8848, and a configured address that other machines can "
        "reach is refused. Port 0 takes a free port.",
        reload=False,
        expects="host:port",
    )
    http_listen: ListenOrOff = key(
        "127.0.0.1:8849",
        "Address of the HTTP/JSON service, which also serves /metrics. The same "
        "rule as for server.listen applies. Empty: no HTTP.",
        reload=False,
        expects="host:port, or empty",
    )
    max_connections: int = key(
        512,
        "Connections, and calls that run or wait for a thread. A further connection is refused "
        "(the client sees UNAVAILABLE), a further call is answered RESOURCE_EXHAUSTED at once.",
        reload=False,
        unit="connections",
        ge=1,
        le=100_000,
    )
    read_timeout_ms: int = key(
        5000,
        "Longest time a Query may take when its client set no shorter deadline; then it ends "
        "with DEADLINE_EXCEEDED. The search itself is bounded by query.timeout_ms.",
        reload=True,
        unit="milliseconds",
        ge=1,
        le=600_000,
    )
    write_timeout_ms: int = key(
        10_000,
        "Longest time a Write or Forget may wait for its commit when its client set no shorter "
        "deadline; then it ends with DEADLINE_EXCEEDED, and repeating it with the same "
        "request_id is safe.",
        reload=True,
        unit="milliseconds",
        ge=1,
        le=600_000,
    )
    graceful_shutdown_ms: int = key(
        30_000,
        "Time that running calls get to finish after SIGTERM, while new ones are refused. 0 "
        "breaks them off.",
        reload=True,
        unit="milliseconds",
        ge=0,
        le=600_000,
    )
    max_message_bytes: int = key(
        16 * _MIB,
        "Largest request or response. 500 vectors of 1536 numbers are about 3 MB. A larger "
        "request is refused before anything of it is applied.",
        reload=False,
        unit="bytes",
        ge=64 * 1024,
        le=1024 * _MIB,
    )
    workers: int = key(
        32,
        "Threads that answer calls. A Query that waits for min_position, or because as many "
        "search as there are cores, and a Write that waits for its commit each hold one.",
        reload=False,
        unit="threads",
        ge=2,
        le=1024,
    )
    readers: Annotated[int, Ge(0), Le(64)] | Literal["auto"] = key(
        "auto",
        "Processes that answer Query on server.listen beside the serving process, which then "
        "takes Write, Forget and administration from them and keeps HTTP. As many as there are "
        "cores answer the most queries. server.max_connections and server.workers hold for each, "
        "storage.tail_budget_bytes is shared out. 0: one process does everything. auto: one for "
        "each core that the node may use (by affinity, and by the CPU limit of its container or "
        "unit, rounded up) but one, at most 16; none on one core. Embedded use has none.",
        reload=False,
        unit="processes",
        expects="auto, or an integer from 0 to 64 (processes)",
    )
    allow_insecure: bool = key(
        False,
        "Lets the service be reached from other machines although auth.mode is none: everyone "
        "who can connect reads, writes and forgets everything. For closed networks only.",
        reload=False,
    )
    tls: Tls = Tls()


class Auth(Section):
    """Who may call."""

    mode: Literal["none", "token"] = key(
        "none",
        "token: every call names a token of auth.tokens_file and is refused otherwise. none: "
        "everyone who can connect may do everything, so the service stays on loopback.",
        reload=False,
    )
    token_header: str = key(
        "X-Memory-Token",
        "HTTP header, and in lower case the gRPC metadata key, that carries the token.",
        reload=False,
        expects="letters, digits and hyphens",
        pattern=r"^[A-Za-z][A-Za-z0-9-]*$",
    )
    tokens_file: str = key(
        "",
        "File of hashed tokens; changes in it are picked up without a restart. Empty: "
        "tokens.yaml in storage.data_dir.",
        reload=False,
        expects="a path, or empty",
    )
    namespace_scope: bool = key(
        True,
        "Confines a token to its namespace prefixes. false: only the rights of a token count, "
        "and every token reaches every tenant.",
        reload=False,
    )


class Limits(Section):
    """What one caller may use of the service."""

    requests_per_second: float = key(
        0.0,
        "Calls per second that one namespace (tenant/agent) may make in the long run; past it "
        "the answer is RESOURCE_EXHAUSTED with a retry delay. 0: no limit.",
        reload=True,
        unit="calls per second",
        ge=0,
        le=1_000_000,
    )
    burst: int = key(
        0,
        "Calls that a namespace may make at once after a quiet time. 0: one second's worth of "
        "limits.requests_per_second, at least 1.",
        reload=True,
        unit="calls",
        ge=0,
        le=1_000_000,
    )
    tenant_max_items: int = key(
        0,
        "Memories that one tenant may hold; past it a Write that would add one is refused. "
        "0: no limit.",
        reload=True,
        unit="memories",
        ge=0,
    )
    tenant_max_bytes: int = key(
        0,
        "Bytes of text, metadata and vectors that one tenant may hold; past it a Write that "
        "would add some is refused. 0: no limit.",
        reload=True,
        unit="bytes",
        ge=0,
    )


class Log(Section):
    """Diagnostic output."""

    level: Literal["debug", "info", "warning", "error"] = key(
        "info",
        "Least severe message that is written. Texts of memories and tokens are never logged, "
        "at any level.",
        reload=True,
    )
    format: Literal["json", "text"] = key(
        "json",
        "json: one object a line, for collectors. text: for people.",
        reload=False,
    )


class Metrics(Section):
    """Prometheus metrics."""

    listen: ListenOrOff = key(
        "",
        "Address of a listener of its own for /metrics, which needs no token. Empty: /metrics "
        "is served by server.http_listen.",
        reload=False,
        expects="host:port, or empty",
    )


class Telemetry(Section):
    """OpenTelemetry traces."""

    otlp_endpoint: str = key(
        "",
        "OTLP/HTTP collector that receives traces, as in http://localhost:4318/v1/traces; needs "
        "the extra `otel`. Empty: no traces.",
        reload=False,
        expects="an http or https URL, or empty",
        pattern=r"^(https?://\S+)?$",
    )
