"""Certificates made for a test."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from memsvc.service.listening import TlsFiles


@dataclass
class Pair:
    """A certificate and its key, on disk."""

    cert: Path
    key: Path


def _make(
    directory: Path,
    name: str,
    issuer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None,
    days: float = 1 / 24,
) -> tuple[Pair, tuple[x509.Certificate, ec.EllipticCurvePrivateKey]]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer[0].subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=2))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), True)
        .add_extension(
            x509.SubjectAlternativeName(
                [
                    x509.DNSName("localhost"),
                    x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
                ]
            ),
            False,
        )
    )
    certificate = builder.sign(issuer[1] if issuer else key, hashes.SHA256())
    pair = Pair(directory / f"{name}.pem", directory / f"{name}.key")
    pair.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    pair.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return pair, (certificate, key)


def make_pair(directory: Path, name: str, days: float) -> Pair:
    """A certificate signed by itself that ends in so many days, or has ended."""
    return _make(directory, name, None, days)[0]


@dataclass
class Authority:
    """A server's files, a client's, and a client's of somebody else."""

    ca: Pair
    server: Pair
    client: Pair
    stranger: Pair

    def files(self, *, mutual: bool) -> TlsFiles:
        ca = str(self.ca.cert) if mutual else ""
        return TlsFiles(str(self.server.cert), str(self.server.key), ca)


def make_authority(directory: Path) -> Authority:
    """An authority, what it has signed, and what another one has signed."""
    ca, signer = _make(directory, "ca", None)
    _, other = _make(directory, "other-ca", None)
    return Authority(
        ca,
        _make(directory, "server", signer)[0],
        _make(directory, "client", signer)[0],
        _make(directory, "stranger", other)[0],
    )
