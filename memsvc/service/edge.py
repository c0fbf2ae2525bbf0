"""What both edges do alike with errors: collect them, cut them to size, log the unexpected."""

from __future__ import annotations

import logging
import secrets
from typing import Final

from memsvc.domain.errors import InvalidArgument, Violation

MAX_VIOLATIONS: Final = 50
"""Violations collected before a request is refused; a caller fixes the first ones first."""

_log = logging.getLogger("memsvc.errors")


def refusal(violations: list[Violation]) -> InvalidArgument:
    """The error for violations: the message names the first, the details all."""
    first = violations[0]
    more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
    text = f"{first.field}: {first.description}" if first.field else first.description
    return InvalidArgument(text + more, violations=tuple(violations))


def clean(text: str, most: int) -> str:
    """A text that can be sent: valid UTF-8 of at most ``most`` bytes, cut with "...".

    Messages quote what a caller sent, which may hold lone surrogates or be very long.
    """
    data = text[: most + 1].encode("utf-8", "backslashreplace")
    if len(data) <= most and len(text) <= most:
        return data.decode()
    return data[: most - 3].decode("utf-8", "ignore") + "..."


def log_incident(call: str) -> str:
    """Logs the exception being handled and returns the random id it is found by."""
    incident = secrets.token_hex(8)
    _log.exception("unexpected error in %s, incident %s", call, incident)
    return incident
