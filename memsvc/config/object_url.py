"""Addresses of folders in an S3-compatible store: s3://BUCKET/PREFIX?endpoint=URL&region=NAME."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, quote, urlsplit

SCHEME: Final = "s3://"


@dataclass(frozen=True, slots=True)
class ObjectUrl:
    """A folder in a bucket. ``endpoint`` and ``region`` are "" when the environment or the
    defaults of AWS say them. Secrets never stand in it."""

    bucket: str
    prefix: str
    endpoint: str = ""
    region: str = ""

    def below(self, name: str) -> ObjectUrl:
        """A folder in this one."""
        prefix = f"{self.prefix}/{name}" if self.prefix else name
        return ObjectUrl(self.bucket, prefix, self.endpoint, self.region)

    def __str__(self) -> str:
        told = {"endpoint": self.endpoint, "region": self.region}
        query = "&".join(f"{key}={quote(value, '/:')}" for key, value in told.items() if value)
        path = f"/{self.prefix}" if self.prefix else ""
        return f"{SCHEME}{self.bucket}{path}" + (f"?{query}" if query else "")


def is_object_url(text: str) -> bool:
    """Whether it is meant to be one, and not a path."""
    return text.startswith(SCHEME)


def parse_object_url(text: str) -> ObjectUrl:
    """The parts of an address. Raises ValueError."""
    found = urlsplit(text)
    if "@" in found.netloc:
        raise ValueError(
            "credentials do not belong into the address: put them into AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY"
        )
    if found.scheme != "s3" or not found.netloc or found.fragment:
        raise ValueError("expected s3://BUCKET/PREFIX, as in s3://backups/memsvc")
    parts = [part for part in found.path.split("/") if part]
    if any(part in (".", "..") for part in parts):
        raise ValueError("the prefix has . or .. in it")
    options = dict(parse_qsl(found.query, keep_blank_values=True, strict_parsing=bool(found.query)))
    unknown = set(options) - {"endpoint", "region"}
    if unknown:
        raise ValueError(f"{sorted(unknown)[0]!r} is neither endpoint nor region")
    endpoint = options.get("endpoint", "")
    if endpoint and not endpoint.startswith(("http://", "https://")):
        raise ValueError("the endpoint does not begin with http:// or https://")
    return ObjectUrl(found.netloc, "/".join(parts), endpoint, options.get("region", ""))
