"""Until when a certificate is good, and what is wrong with it, found by a handshake in memory.

The standard library reads no certificate by itself, but it tells that of a peer once it has
checked it; so both ends of a connection are played here.
"""

from __future__ import annotations

import ssl
from typing import Final

WARN_MS: Final = 14 * 86_400_000
"""So long before its end people are told."""


class CertificateWrong(Exception):
    """A certificate that no client will accept, and why."""


def good_until(cert_file: str, key_file: str) -> int:
    """UTC ms of the end of a server's certificate, PEM. Raises CertificateWrong when it has
    expired, is not yet valid, or is not for a server; OSError and ssl.SSLError when the files
    cannot be used."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(cert_file, key_file)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    # Itself is trusted, whoever signed it: what is asked is not whose it is.
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(cert_file)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server)
    answering = server.wrap_bio(to_server, to_client, server_side=True)
    try:
        for _ in range(2):
            for end in (asking, answering):
                try:
                    end.do_handshake()
                except ssl.SSLWantReadError:
                    continue
    except ssl.SSLCertVerificationError as error:
        raise CertificateWrong(error.verify_message) from None
    found = asking.getpeercert() or {}
    return int(ssl.cert_time_to_seconds(str(found["notAfter"]))) * 1_000


def days_left(until: int, now: int) -> str:
    """A warning when a certificate ends soon or has ended; both UTC ms; "" when it does not."""
    if until - now > WARN_MS:
        return ""
    if until <= now:
        return "the certificate of server.tls.cert_file has expired: clients refuse this node"
    days = (until - now) // 86_400_000
    return (
        f"the certificate of server.tls.cert_file expires in {days} days; a new one is read at "
        "the next start"
    )
