"""Typed settings of a node: declared once, read from file, environment and overrides."""

from memsvc.config.data import Index, Lifecycle, Storage
from memsvc.config.fields import KeyInfo, parse_listen
from memsvc.config.loading import ConfigError, Effective, load, merge_reload, reload_diff
from memsvc.config.model import KEYS, Settings, value_of
from memsvc.config.query import Query
from memsvc.config.render import example, reference, render
from memsvc.config.replication import Node
from memsvc.config.server import Auth, Limits, Log, Metrics, Server, Telemetry, Tls
from memsvc.domain.addresses import ListenAddress

__all__ = [
    "KEYS",
    "Auth",
    "ConfigError",
    "Effective",
    "Index",
    "KeyInfo",
    "Lifecycle",
    "Limits",
    "ListenAddress",
    "Log",
    "Metrics",
    "Node",
    "Query",
    "Server",
    "Settings",
    "Storage",
    "Telemetry",
    "Tls",
    "example",
    "load",
    "merge_reload",
    "parse_listen",
    "reference",
    "reload_diff",
    "render",
    "value_of",
]
