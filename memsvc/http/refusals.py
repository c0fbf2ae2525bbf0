"""What pydantic found wrong with a body, in the words of the interface."""

from __future__ import annotations

from typing import Any, Final, get_args, get_origin

from pydantic import BaseModel, ValidationError

from memsvc.domain.errors import InvalidArgument, Violation
from memsvc.http.filters import nearest
from memsvc.service.edge import MAX_VIOLATIONS, refusal

_TEXTS: Final = {
    "missing": "is required",
    "string_type": "must be a string",
    "int_type": "must be a whole number (a JSON number, not a string)",
    "int_from_float": "must be a whole number",
    "int_parsing_size": "must fit in 64 bits",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "string_unicode": "must be valid Unicode (no lone surrogates)",
}
MAX_LISTED: Final = 10_000
"""More mistakes than this in one body are counted and not listed."""
_TAGS: Final = frozenset({"numbers", "late"})


def from_pydantic(kind: type[BaseModel], error: ValidationError) -> InvalidArgument:
    """The error with a violation for each thing that is wrong, never quoting a value."""
    violations: list[Violation] = []
    if error.error_count() > MAX_LISTED:
        # Each would take a kilobyte to list: gigabytes, for a body made of nothing else.
        text = f"{error.error_count()} things are wrong; compare it with /openapi.json"
        return refusal([Violation("body", text)])
    for one in error.errors(include_url=False, include_input=False, include_context=True):
        if one["type"] == "json_invalid":
            detail = str(one.get("ctx", {}).get("error", "")) or "it cannot be parsed"
            return InvalidArgument(
                f"the body is not valid JSON: {detail[:200]}",
                reason="MALFORMED_REQUEST",
                hint="Text must be UTF-8 without lone surrogates; NaN and Infinity are no JSON.",
            )
        if len(violations) < MAX_VIOLATIONS:
            violations.append(_violation(kind, one))
    return refusal(violations)


def _violation(kind: type[BaseModel], one: Any) -> Violation:
    loc = tuple(part for part in one["loc"] if part not in _TAGS)
    what = one["type"]
    if what == "extra_forbidden":
        known = tuple(_model_at(kind, loc[:-1]).model_fields)
        guess = nearest(str(loc[-1]), known)
        text = f"unknown field; did you mean {guess}?" if guess else "unknown field"
    elif what == "too_long":
        text = f"at most {one['ctx']['max_length']}"
    elif what in ("greater_than_equal", "less_than_equal"):
        bound = "ge" if what == "greater_than_equal" else "le"
        text = f"must be at {'least' if bound == 'ge' else 'most'} {one['ctx'][bound]}"
    else:
        text = _TEXTS.get(what) or str(one["msg"]).removeprefix("Value error, ")
    return Violation(_path(loc) or "body", text)


def _path(loc: tuple[int | str, ...]) -> str:
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part[:80]}" if path else part[:80]
    return path


def _model_at(kind: type[BaseModel], loc: tuple[int | str, ...]) -> type[BaseModel]:
    for part in loc:
        if isinstance(part, str) and part in kind.model_fields:
            kind = _model_in(kind.model_fields[part].annotation) or kind
    return kind


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if get_origin(annotation) is None:
        is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
        return annotation if is_model else None
    for inner in get_args(annotation):
        found = _model_in(inner)
        if found is not None:
            return found
    return None
