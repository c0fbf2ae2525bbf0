"""TLS of gRPC listeners."""

from __future__ import annotations

import logging
from pathlib import Path

import grpc

from memsvc.service.certificates import Renewal
from memsvc.service.listening import TlsFiles

log = logging.getLogger(__name__)


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Credentials of a listener; with a client CA, callers must show a certificate. A certificate
    that is replaced on disk is shown to whoever connects from then on. Raises ListenError when a
    file cannot be used."""
    files.check()
    ca = Path(files.client_ca_file).read_bytes() if files.client_ca_file else None
    renewal = Renewal(files)

    def read() -> grpc.ServerCertificateConfiguration:
        pair = (Path(files.key_file).read_bytes(), Path(files.cert_file).read_bytes())
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=ca)

    def fresh() -> grpc.ServerCertificateConfiguration | None:
        try:
            return read() if renewal.renewed() else None
        except OSError as error:  # replaced once more; the next connection looks again
            log.warning("the certificate was not taken: %s", error)
            return None

    return grpc.dynamic_ssl_server_credentials(
        read(),
        fresh,  # type: ignore[arg-type]  # the stubs leave out None, "no change"
        require_client_authentication=ca is not None,
    )
