"""What both servers need to listen."""

from __future__ import annotations

from dataclasses import dataclass


class ListenError(RuntimeError):
    """An address cannot be listened on, or a certificate cannot be used. The message names
    the setting."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files; with ``client_ca_file`` clients must show a certificate of it."""

    cert_file: str
    key_file: str
    client_ca_file: str = ""
