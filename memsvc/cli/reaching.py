"""Why nobody answers at an address: gRPC tells the reason of the last address it tried only.

A name may stand for several addresses (localhost: ::1 and 127.0.0.1), and a plain client of a TLS
port is told no more than that the connection ended.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from memsvc.client import Tls

WAIT_S: Final = 2.0
"""For each address."""
_EXPIRED: Final = 10
_NOT_YET_VALID: Final = 9
_OTHER_NAME: Final = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH

EXPIRED: Final = (
    "the certificate of the service has expired: put a new one where its server.tls.cert_file "
    "says; it needs no restart"
)
NOT_YET_VALID: Final = "the clock here is wrong, or that of where the certificate was made"
OTHER_NAME: Final = (
    "the certificate of the service is for another name: use that in --address, or tell it by "
    "--server-name"
)
OTHER_AUTHORITY: Final = (
    "name the authority that signed the certificate of the service: --ca-file, or MEMSVC_CA_FILE"
)
NO_TLS: Final = "that address does not speak TLS: leave out --tls and --ca-file"
NEEDS_TLS: Final = (
    "that address speaks TLS: --tls, or --ca-file (MEMSVC_CA_FILE) with the authority that signed "
    "its certificate"
)
NEEDS_CERTIFICATE: Final = (
    "the service wants a certificate of this client, of an authority that it knows: --cert-file "
    "and --key-file"
)


def why_unreachable(address: str, tls: Tls | None) -> str:
    """What to do about it, "" where that cannot be said. Tries the address once more, by hand;
    takes some seconds at most."""
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdigit():
        return ""
    host = host.strip("[]")
    for connection in _connected(host, int(port)):
        with connection:
            if tls is None:
                return NEEDS_TLS if _speaks_tls(connection, host) else ""
            return _refusal(connection, host, tls)
    return ""


def _connected(host: str, port: int) -> Iterator[socket.socket]:
    with suppress(OSError):
        for family, kind, protocol, _, place in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        ):
            with suppress(OSError):
                connection = socket.socket(family, kind, protocol)
                connection.settimeout(WAIT_S)
                connection.connect(place)
                yield connection
                return


def _speaks_tls(connection: socket.socket, host: str) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with context.wrap_socket(connection, server_hostname=host):
            return True
    except (OSError, ValueError):
        return False


def _refusal(connection: socket.socket, host: str, tls: Tls) -> str:
    shaken = False
    try:
        context = ssl.create_default_context(cafile=tls.ca_file or None)
        if tls.cert_file:
            context.load_cert_chain(tls.cert_file, tls.key_file)
        context.set_alpn_protocols(["h2"])
        with context.wrap_socket(connection, server_hostname=tls.server_name or host) as secured:
            shaken = True
            # A service that is content sends its settings first.
            if secured.recv(1):
                return ""
    except ssl.SSLCertVerificationError as error:
        if error.verify_code == _EXPIRED:
            return EXPIRED
        if error.verify_code == _NOT_YET_VALID:
            return NOT_YET_VALID
        return OTHER_NAME if error.verify_code in _OTHER_NAME else OTHER_AUTHORITY
    except ssl.SSLError as error:
        if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
            return NO_TLS
    except TimeoutError:
        return ""
    except (OSError, ValueError):
        pass
    # It missed a certificate of ours, or did not accept it.
    return NEEDS_CERTIFICATE if shaken else ""
