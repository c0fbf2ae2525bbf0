"""The whole of the settings, and the rules that span several of them."""

from collections.abc import Iterator
from pathlib import Path

from memsvc.config.data import Index, Lifecycle, Storage
from memsvc.config.fields import KeyInfo, Section, iter_keys, parse_listen
from memsvc.config.query import Query
from memsvc.config.replication import Node, Replication
from memsvc.config.server import (
    Auth,
    Limits,
    Log,
    Metrics,
    Server,
    Telemetry,
)


class Settings(Section):
    """Everything a node can be told. Immutable; a reload makes a new one."""

    server: Server = Server()
    auth: Auth = Auth()
    storage: Storage = Storage()
    index: Index = Index()
    query: Query = Query()
    lifecycle: Lifecycle = Lifecycle()
    limits: Limits = Limits()
    node: Node = Node()
    replication: Replication = Replication()
    log: Log = Log()
    metrics: Metrics = Metrics()
    telemetry: Telemetry = Telemetry()

    @property
    def tokens_path(self) -> Path:
        """The tokens file in force."""
        return Path(self.auth.tokens_file or self.storage.data_dir / "tokens.yaml")

    def min_score(self, tenant: str, agent: str) -> float:
        """Least cosine similarity for a namespace when a request sets none."""
        return self.query.min_score_by_namespace.get(f"{tenant}/{agent}", self.query.min_score)


KEYS: dict[str, KeyInfo] = {info.name: info for info in iter_keys(Settings)}
"""Every setting by its dotted name, in the order of declaration."""


def value_of(settings: Settings, name: str) -> object:
    """The value of a dotted key; KeyError for a name that is not in `KEYS`."""
    if name not in KEYS:
        raise KeyError(name)
    value: object = settings
    for part in name.split("."):
        value = getattr(value, part)
    return value


def contradictions(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield (key, what is wrong) for values that are fine alone but not together, and for text that
    cannot be handed on, to LMDB, to a reader or to a builder."""
    for name in KEYS:
        text = str(value_of(settings, name))
        if not text.isascii() and text != text.encode("utf-8", "replace").decode():
            yield name, f"found {text!a}, expected text in UTF-8"
    server, auth, query = settings.server, settings.auth, settings.query
    if query.default_top_k > query.max_top_k:
        yield (
            "query.default_top_k",
            f"found {query.default_top_k}, expected at most query.max_top_k ({query.max_top_k})",
        )
    if bool(server.tls.cert_file) != bool(server.tls.key_file):
        missing = "key_file" if server.tls.cert_file else "cert_file"
        yield f"server.tls.{missing}", "found nothing, expected a path: cert and key go together"
    if server.tls.client_ca_file and not server.tls.cert_file:
        yield "server.tls.client_ca_file", "needs server.tls.cert_file and server.tls.key_file"
    yield from _replication(settings)
    if auth.mode == "none" and not server.allow_insecure:
        for name, text in (("listen", server.listen), ("http_listen", server.http_listen)):
            if text and not parse_listen(text).is_loopback:
                yield (
                    f"server.{name}",
                    f"found {text}, which other machines can reach, while auth.mode is none; set "
                    "auth.mode: token (see `memsvc token add`), listen on 127.0.0.1, or set "
                    "server.allow_insecure: true on a closed network",
                )


def _replication(settings: Settings) -> Iterator[tuple[str, str]]:
    role, replication = settings.node.role, settings.replication
    for wanted, name in (("primary", "listen"), ("replica", "primary")):
        if role == wanted and not getattr(replication, name):
            yield f"replication.{name}", f"found nothing, expected host:port for a {role}"
    if role == "standalone":
        for name in ("listen", "nodes", "min_acks"):
            if getattr(replication, name):
                yield f"replication.{name}", "is for node.role primary or replica"
    if replication.min_acks and settings.storage.wal_sync != "always":
        yield (
            "storage.wal_sync",
            "expected always with replication.min_acks: a write that is on no disk yet cannot be "
            "confirmed by others",
        )
    yield from _group(replication)
    if not replication.listen or parse_listen(replication.listen).is_loopback:
        return
    if not replication.token_file and not settings.server.tls.client_ca_file:
        yield (
            "replication.listen",
            f"found {replication.listen}, which other machines can reach: set "
            "replication.token_file, or server.tls with client_ca_file",
        )


def _group(replication: Replication) -> Iterator[tuple[str, str]]:
    nodes = replication.nodes
    if nodes and not replication.listen:
        yield "replication.listen", "found nothing, expected host:port for a node of a group"
    if replication.min_acks > max(0, len(nodes) - 1):
        yield (
            "replication.min_acks",
            f"found {replication.min_acks}, but replication.nodes names "
            f"{max(0, len(nodes) - 1)} nodes beside the primary",
        )


def warnings(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield (key, what to know) for values that work but are risky."""
    server = settings.server
    open_to = [
        f"server.{name}"
        for name, text in (("listen", server.listen), ("http_listen", server.http_listen))
        if text and not parse_listen(text).is_loopback
    ]
    for name in open_to:
        if settings.auth.mode == "none":
            yield name, "open to other machines without tokens (server.allow_insecure)"
        elif not server.tls.cert_file:
            yield name, "tokens cross the network unencrypted: server.tls is not set"
    if settings.storage.wal_sync != "always":
        yield "storage.wal_sync", "a crash may lose up to a second of acknowledged writes"
