"""Domain errors as gRPC statuses with google.rpc details.

Every error a caller sees is made here: a MemsvcError keeps its code, message, violations,
retry delay and hint; anything else becomes INTERNAL with an incident id and nothing more.
"""

from __future__ import annotations

from typing import Final, NoReturn

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from memsvc.domain.errors import Code, MemsvcError, Violation
from memsvc.service.edge import clean, log_incident

DOMAIN: Final = "memsvc"
"""``ErrorInfo.domain`` of every error."""

REQUEST_ID_KEY: Final = "x-request-id"
DETAILS_KEY: Final = "grpc-status-details-bin"

# Details travel in trailing metadata, and a client drops a call whose metadata passes 8 KB
# with an error that says nothing about the cause. Base64 adds a third to the details, and
# percent-encoding triples what is not ASCII in the message.
MAX_DETAILS_BYTES: Final = 3_500
MAX_MESSAGE_BYTES: Final = 700
MAX_VIOLATION_BYTES: Final = 400

GRPC_CODES: Final[dict[Code, grpc.StatusCode]] = {
    code: getattr(grpc.StatusCode, code.name) for code in Code
}


def to_status(error: MemsvcError) -> status_pb2.Status:
    """The google.rpc.Status of an error, small enough for the trailing metadata.

    Violations beyond what fits are counted in a last one.
    """
    status = status_pb2.Status(
        code=GRPC_CODES[error.code].value[0], message=clean(error.message, MAX_MESSAGE_BYTES)
    )
    metadata = {key: clean(value, 200) for key, value in sorted(error.metadata.items())[:8]}
    if error.hint:
        metadata["hint"] = clean(error.hint, 500)
    _pack(
        status,
        error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=metadata),
    )
    if error.retry_after_ms is not None:
        seconds, ms = divmod(max(0, error.retry_after_ms), 1_000)
        delay = duration_pb2.Duration(seconds=seconds, nanos=ms * 1_000_000)
        _pack(status, error_details_pb2.RetryInfo(retry_delay=delay))
    if error.violations:
        _pack(status, _bad_request(error.violations, MAX_DETAILS_BYTES - status.ByteSize()))
    return status


def _bad_request(violations: tuple[Violation, ...], room: int) -> error_details_pb2.BadRequest:
    bad = error_details_pb2.BadRequest()
    room -= 150  # the envelope, and the line that counts the rest
    for index, violation in enumerate(violations):
        entry = error_details_pb2.BadRequest.FieldViolation(
            field=clean(violation.field, MAX_VIOLATION_BYTES),
            description=clean(violation.description, MAX_VIOLATION_BYTES),
        )
        room -= entry.ByteSize() + 4
        if room < 0:
            bad.field_violations.add(
                field="", description=f"and {len(violations) - index} more violations"
            )
            break
        bad.field_violations.append(entry)
    return bad


def _pack(status: status_pb2.Status, detail: Message) -> None:
    packed = any_pb2.Any()
    packed.Pack(detail)
    status.details.append(packed)


def internal_status(method: str) -> status_pb2.Status:
    """The status of an unexpected exception, which must be the one being handled.

    It is logged with its traceback under a random incident id; the caller gets only the id.
    """
    incident = log_incident(method)
    status = status_pb2.Status(
        code=grpc.StatusCode.INTERNAL.value[0],
        message=f"internal error; the server's log has it as incident {incident}",
    )
    _pack(
        status,
        error_details_pb2.ErrorInfo(
            reason="INTERNAL", domain=DOMAIN, metadata={"incident": incident}
        ),
    )
    return status


def abort(context: grpc.ServicerContext, status: status_pb2.Status, request_id: str) -> NoReturn:
    """Ends a call with a status, whose details go into the trailing metadata."""
    context.set_trailing_metadata(
        ((DETAILS_KEY, status.SerializeToString()), (REQUEST_ID_KEY, request_id))
    )
    context.abort(_BY_NUMBER[status.code], status.message)
    raise AssertionError("unreachable: abort raises")


_BY_NUMBER: Final = {code.value[0]: code for code in grpc.StatusCode}
