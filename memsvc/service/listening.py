"""What both servers need to listen."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from memsvc.config import Settings


class ListenError(Exception):
    """An address cannot be listened on, or a certificate cannot be used. The message names
    the setting."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files; with ``client_ca_file`` clients must show a certificate of it."""

    cert_file: str
    key_file: str
    client_ca_file: str = ""

    def check(self) -> None:
        """Raises ListenError naming the file that is missing or does not fit the others."""
        for name in ("cert_file", "key_file", "client_ca_file"):
            path = getattr(self, name)
            if not path and name == "client_ca_file":
                continue
            try:
                Path(path).read_bytes()
            except OSError as error:
                raise ListenError(
                    f"server.tls.{name}: {path} cannot be read: {error.strerror}"
                ) from error
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.cert_file, self.key_file)
        except ssl.SSLError as error:
            raise ListenError(
                f"server.tls.key_file: {self.key_file} is not the key of "
                f"{self.cert_file}, or one of them is not PEM"
            ) from error
        if self.client_ca_file:
            try:
                context.load_verify_locations(self.client_ca_file)
            except ssl.SSLError as error:
                raise ListenError(
                    f"server.tls.client_ca_file: {self.client_ca_file} holds no certificate"
                ) from error


def tls_of(settings: Settings) -> TlsFiles | None:
    """The files of ``server.tls``; None when connections are not encrypted."""
    tls = settings.server.tls
    return TlsFiles(tls.cert_file, tls.key_file, tls.client_ca_file) if tls.cert_file else None
