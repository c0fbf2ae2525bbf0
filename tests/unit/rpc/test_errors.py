"""Errors that would not reach the caller, or would tell too much."""

from __future__ import annotations

import base64
import logging
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2

from memsvc.domain import errors as domain
from memsvc.rpc import errors
from memsvc.service import edge


def details(status: Any) -> dict[str, Any]:
    found = {}
    for packed in status.details:
        for kind in (
            error_details_pb2.ErrorInfo,
            error_details_pb2.RetryInfo,
            error_details_pb2.BadRequest,
        ):
            if packed.Is(kind.DESCRIPTOR):
                message = kind()
                packed.Unpack(message)
                found[kind.DESCRIPTOR.name] = message
    return found


def test_every_code_has_a_status() -> None:
    for code in domain.Code:
        assert errors.GRPC_CODES[code].name == code.name


def test_status_carries_reason_hint_fields_and_delay() -> None:
    error = domain.ResourceExhausted(
        "queue full",
        reason="WRITE_QUEUE_FULL",
        hint="wait",
        retry_after_ms=1_250,
        metadata={"limit": "5000"},
        violations=(domain.Violation("items", "too many"),),
    )
    status = errors.to_status(error)
    assert status.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    found = details(status)
    info = found["ErrorInfo"]
    assert (info.domain, info.reason) == ("memsvc", "WRITE_QUEUE_FULL")
    assert dict(info.metadata) == {"limit": "5000", "hint": "wait"}
    delay = found["RetryInfo"].retry_delay
    assert (delay.seconds, delay.nanos) == (1, 250_000_000)
    violation = found["BadRequest"].field_violations[0]
    assert (violation.field, violation.description) == ("items", "too many")


def test_details_always_fit_the_metadata_a_client_accepts() -> None:
    error = domain.InvalidArgument(
        "錯" * 5_000,
        hint="錯" * 5_000,
        metadata={f"k{i}": "錯" * 500 for i in range(50)},
        violations=tuple(
            domain.Violation(f"items[{i}].memory.vector", "錯" * 300) for i in range(1_000)
        ),
    )
    status = errors.to_status(error)
    encoded = base64.b64encode(status.SerializeToString())
    assert len(encoded) + 3 * len(status.message.encode()) < 8_000
    bad = details(status).get("BadRequest")
    assert bad is None or "more violations" in bad.field_violations[-1].description


def test_many_violations_are_counted_when_they_do_not_fit() -> None:
    violations = tuple(domain.Violation(f"items[{i}]", "is wrong") for i in range(1_000))
    status = errors.to_status(domain.InvalidArgument("bad", violations=violations))
    listed = details(status)["BadRequest"].field_violations
    assert 20 < len(listed) < 1_000
    assert listed[-1].description == f"and {1_000 - len(listed) + 1} more violations"
    assert len(status.SerializeToString()) < 4_000


def test_lone_surrogates_in_a_message_do_not_break_the_answer() -> None:
    error = domain.invalid("filters.role", "not \ud800")
    status = errors.to_status(error)
    assert "\\ud800" in status.message
    assert "\\ud800" in details(status)["BadRequest"].field_violations[0].description


def test_unexpected_error_tells_an_incident_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR):
        try:
            raise ValueError("/var/lib/secret")
        except ValueError:
            status = errors.internal_status("Write")
    assert status.code == grpc.StatusCode.INTERNAL.value[0]
    assert b"secret" not in status.SerializeToString()
    incident = details(status)["ErrorInfo"].metadata["incident"]
    assert incident in caplog.text and "secret" in caplog.text


def test_cut_text_stays_valid() -> None:
    for most in range(10, 20):
        cut = edge.clean("aé錯𝄞" * 10, most)
        assert len(cut.encode()) <= most and cut.endswith("...")
    assert edge.clean("short", 10) == "short"
