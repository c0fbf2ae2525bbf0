"""Options that several commands share, and the types of their values."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import click
import numpy as np

from memsvc.cli.failures import Unreachable
from memsvc.cli.reaching import why_unreachable
from memsvc.client import ClientError, MemoryClient, Timeouts, Tls
from memsvc.client.connection import (
    DEFAULT_ADDRESS,
    DEFAULT_TOKEN_HEADER,
    MAX_TIMEOUT_S,
    checked_token,
)
from memsvc.client.filters import parse_filter
from memsvc.client.messages import parse_namespace
from memsvc.domain.filters import Filter
from memsvc.domain.limits import MAX_TIME_MS
from memsvc.domain.types import Namespace, Vector

F = TypeVar("F", bound=Callable[..., Any])

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)?")
_MS: Final = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}


class FiniteRange(click.FloatRange):
    """A number within bounds; "nan", which is beyond none of them, and "inf" are none."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """As FloatRange does."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a number.", param, ctx)
        return number


@dataclass(frozen=True, slots=True)
class Target:
    """Which service to talk to, and how."""

    address: str
    token: str | None
    tls: Tls | None
    timeout: float | None
    token_header: str

    def connect(self, *, embedding: str = "", least_timeout: float = 0.0) -> MemoryClient:
        """A client. ``least_timeout``: seconds that a long call needs at least, unless the
        person said otherwise."""
        usual = Timeouts()
        read = self.timeout or max(usual.read, least_timeout)
        write = self.timeout or max(usual.write, least_timeout)
        return MemoryClient(
            self.address,
            self.token,
            tls=self.tls,
            timeouts=Timeouts(
                connect=max(usual.connect, self.timeout or 0.0),
                read=read,
                write=write,
                admin=self.timeout or usual.admin,
            ),
            token_header=self.token_header,
            embedding=embedding,
        )


def connection(command: F) -> F:
    """Adds the options that say where the service is; passes them as ``target``."""

    @click.option(
        "--address",
        envvar="MEMSVC_ADDRESS",
        default=DEFAULT_ADDRESS,
        show_default=True,
        show_envvar=True,
        metavar="HOST:PORT",
        help="gRPC address of the service.",
    )
    @click.option(
        "--token",
        envvar="MEMSVC_TOKEN",
        show_envvar=True,
        help="Access token. Better in the environment: options are visible to other users.",
    )
    @click.option("--tls", is_flag=True, help="Encrypt; implied by the options below.")
    @click.option(
        "--ca-file",
        envvar="MEMSVC_CA_FILE",
        show_envvar=True,
        default="",
        help="Authorities of the server's certificate, PEM.",
    )
    @click.option(
        "--cert-file",
        envvar="MEMSVC_CERT_FILE",
        show_envvar=True,
        default="",
        help="Certificate of this client, PEM.",
    )
    @click.option(
        "--key-file",
        envvar="MEMSVC_KEY_FILE",
        show_envvar=True,
        default="",
        help="Private key of --cert-file, PEM.",
    )
    @click.option("--server-name", default="", help="Name to expect in the certificate.")
    @click.option(
        "--timeout", type=FiniteRange(0.001, MAX_TIMEOUT_S), help="Seconds for each call."
    )
    @click.option(
        "--token-header",
        default=DEFAULT_TOKEN_HEADER,
        hidden=True,
        help="The server's auth.token_header.",
    )
    @functools.wraps(command)
    def wrapped(
        *args: Any,
        address: str,
        token: str | None,
        tls: bool,
        ca_file: str,
        cert_file: str,
        key_file: str,
        server_name: str,
        timeout: float | None,
        token_header: str,
        **kwargs: Any,
    ) -> Any:
        if bool(cert_file) != bool(key_file):
            raise click.UsageError("--cert-file and --key-file go together")
        try:
            token = checked_token(token)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        if not address or not address.isprintable():
            raise click.UsageError(f"--address: expected HOST:PORT, not {address!r:.80}")
        wants_tls = tls or ca_file or cert_file or server_name
        target = Target(
            address,
            token or None,
            Tls(ca_file, cert_file, key_file, server_name) if wants_tls else None,
            timeout,
            token_header,
        )
        try:
            return command(*args, target=target, **kwargs)
        except ClientError as error:
            cause = why_unreachable(address, target.tls) if error.unreachable else ""
            if not cause:
                raise
            raise Unreachable(error.message, hint=cause) from error

    return cast(F, wrapped)


# Types of values are plain functions: they raise BadParameter, and click adds the option's name.


def namespace_value(text: str) -> Namespace:
    """tenant/agent or tenant/agent/session."""
    try:
        return parse_namespace(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def duration(text: str) -> int:
    """ "90s", "15m", "12h", "30d", "2w" as milliseconds. A bare number but 0 is refused: who
    writes 7 may mean days."""
    match = _DURATION.fullmatch(text)
    if match is None or (match[2] is None and float(match[1])):
        raise click.BadParameter(
            f"expected a duration as in 90s, 15m, 12h, 30d or 2w, not {text!r}"
        )
    return round(float(match[1]) * _MS[match[2] or "ms"])


def time_ms(text: str) -> int:
    """UTC milliseconds, digits only: a date without a time zone means something else
    elsewhere, and seconds would land in 1970."""
    if not (text.isascii() and text.isdigit() and int(text) <= MAX_TIME_MS):
        raise click.BadParameter(
            f"expected UTC milliseconds since 1970 (as from `date +%s000`), not {text!r}"
        )
    if 0 < int(text) < 100_000_000_000:
        raise click.BadParameter(
            f"{text} ms is early in the 1970s; are these seconds? Milliseconds have 13 digits"
        )
    return int(text)


def filter_value(text: str) -> Filter:
    """A filter in the JSON form of the HTTP interface; fields are checked by the service."""
    try:
        return parse_filter(json.loads(text))
    except json.JSONDecodeError as error:
        raise click.BadParameter(
            f"not valid JSON ({error}); an example: "
            '\'{"session": "chat-1", "ts": {"gte": 1700000000000}}\''
        ) from None
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def vector_file(text: str) -> Vector:
    """The vector in a file: a JSON array, a NumPy .npy file, or raw little-endian float32."""
    try:
        data = Path(text).read_bytes()
        if text.endswith(".npy"):
            array = np.load(text, allow_pickle=False)
        elif data.lstrip()[:1] == b"[":
            array = np.array(json.loads(data))
        elif data and len(data) % 4 == 0:
            array = np.frombuffer(data, dtype="<f4")
        else:
            raise ValueError("expected a JSON array, a .npy file or raw float32 numbers")
        if array.ndim != 1 or not array.size:
            raise ValueError(f"expected one vector, found shape {array.shape}")
        return np.asarray(array, dtype=np.float32)
    except OSError as error:
        raise click.BadParameter(f"{text}: {error.strerror}") from None
    except ValueError as error:
        raise click.BadParameter(f"{text}: {error}") from None


namespace_option = click.option(
    "-n",
    "--namespace",
    type=namespace_value,
    required=True,
    metavar="TENANT/AGENT[/SESSION]",
    help="Whose memory. Sessions never separate readers: end users who must not see each "
    "other need a tenant or an agent each.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="JSON, for scripts.")
embedder_option = click.option(
    "--embedder",
    "embedder_choice",
    type=click.Choice(["auto", "local", "none"]),
    default="auto",
    show_default=True,
    help="Who turns text into vectors. auto: the local embedder, if it is installed and is the "
    "store's model; local: it or an error; none: nobody, words only.",
)
embedding_option = click.option(
    "--embedding", default="", metavar="NAME", help="Model of the vectors, if not the default."
)
