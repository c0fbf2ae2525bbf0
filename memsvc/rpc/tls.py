"""TLS of gRPC listeners."""

from __future__ import annotations

from pathlib import Path

import grpc

from memsvc.service.listening import TlsFiles


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Credentials of a listener; with a client CA, callers must show a certificate. Raises
    ListenError when a file cannot be used."""
    files.check()
    pair = (Path(files.key_file).read_bytes(), Path(files.cert_file).read_bytes())
    ca = Path(files.client_ca_file).read_bytes() if files.client_ca_file else None
    return grpc.ssl_server_credentials(
        [pair], root_certificates=ca, require_client_auth=ca is not None
    )
