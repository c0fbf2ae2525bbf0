"""Addresses to listen on, as people write them."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple


class ListenAddress(NamedTuple):
    """Where a server listens. `port` 0 lets the system choose one."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """True when only programs on this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False  # a name may resolve to anything

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def split_listen(text: str, example_port: int) -> tuple[str, str]:
    """Host (without brackets) and port of "host:port" or "[v6]:port" as they are written, both
    "" when one of them is missing. ValueError for an IPv6 address without brackets, whose hint
    has ``example_port``."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"an IPv6 address is written in brackets, as in [::1]:{example_port}")
    return (host, port) if colon and host else ("", "")
