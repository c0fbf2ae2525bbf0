"""Until when a certificate is good, and what is wrong with it, found by a handshake in memory.

The standard library reads no certificate by itself, but it tells that of a peer once it has
checked it; so both ends of a connection are played here.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
from typing import Final

from memsvc.domain.wording import counted
from memsvc.service.listening import ListenError, TlsFiles

log = logging.getLogger(__name__)

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


class Renewal:
    """Tells a listener when its certificate was replaced. Asked at each new connection: it looks at
    the files' times, and reads them when these have changed. Files that do not fit each other, as
    between the writing of one and of the other, are left for later."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._known = self._refused = self._marks()

    def renewed(self) -> bool:
        """Whether there are others since it was last said so, and they can be used."""
        marks = self._marks()
        if marks == self._known:
            return False
        with self._lock:
            if marks == self._known:
                return False
            try:
                self._files.check()
            except ListenError as error:
                if marks != self._refused:
                    log.warning("the certificate was changed, and is not taken yet: %s", error)
                self._refused = marks
                return False
            self._known = marks
        log.info("%s was renewed", self._files.cert_file)
        return True

    def _marks(self) -> tuple[tuple[int, int, int], ...]:
        found = []
        for path in (self._files.cert_file, self._files.key_file):
            try:
                state = os.stat(path)
            except OSError:
                found.append((0, 0, 0))
            else:
                found.append((state.st_ino, state.st_mtime_ns, state.st_size))
        return tuple(found)


class Ending:
    """Until when the certificate of some files is good, as they are now."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._renewal = Renewal(files)
        self._until = self._look()

    def until(self) -> int:
        """UTC ms; 1 when clients refuse it already."""
        if self._renewal.renewed():
            self._until = self._look()
        return self._until

    def _look(self) -> int:
        try:
            return good_until(self._files.cert_file, self._files.key_file)
        except CertificateWrong as error:
            log.error("clients will refuse %s: %s", self._files.cert_file, error)
        except OSError as error:
            log.error("%s cannot be read: %s", self._files.cert_file, error)
        return 1


def days_left(until: int, now: int) -> str:
    """A warning when a certificate ends soon or has ended; both UTC ms; "" when it does not."""
    if until - now > WARN_MS:
        return ""
    if until <= now:
        return "clients refuse the certificate of server.tls.cert_file: expired, or invalid"
    days = counted((until - now) // 86_400_000, "day")
    return (
        f"the certificate of server.tls.cert_file expires in {days}; put the new one in its place"
    )
