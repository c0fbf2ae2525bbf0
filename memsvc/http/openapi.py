"""The OpenAPI 3.1 document, made from the models that read and describe the bodies."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from memsvc.http import answers, models
from memsvc.http.filters import json_schema
from memsvc.http.problems import MEDIA_TYPE

_REF: Final = "#/components/schemas/{model}"

EXAMPLES: Final[dict[str, dict[str, Any]]] = {
    "write": {
        "namespace": ["acme", "assistant", "s1"],
        "items": [
            {
                "dedup_key": "s1:1:0f2b7a",
                "content": "The user said they prefer short, direct answers.",
                "summary": "The user prefers short, direct answers.",
                "vector": [0.12, -0.03, 0.44, 0.09],
                "metadata": {
                    "seq": 1,
                    "role": "user",
                    "ts": 1767225600000,
                    "importance": 0.8,
                    "source": "chat",
                },
            },
            {"touch": {"id": "0192f0c1-7b1e-7c44-9c55-2f6a1d3b8e10", "kind": "USED"}},
        ],
    },
    "query": {
        "namespace": ["acme", "assistant", "s1"],
        "vector": [0.12, -0.03, 0.44, 0.09],
        "text": "answer style",
        "top_k": 40,
        "min_score": 0.62,
        "filters": {"status": "active", "ts": {"gte": 1767225600000}},
    },
    "forget": {
        "namespace": ["acme", "assistant"],
        "request_id": "forget-s1",
        "filters": {"session": "s1"},
        "mode": "HARD",
    },
}
"""Bodies of the three calls; a test reads each as the server would."""

_ERRORS: Final = {
    "400": "The request is not valid; violations name the fields",
    "401": "No valid token",
    "403": "The token does not allow this here",
    "404": "A memory named by id does not exist here",
    "409": "A version or position does not match, or the node is not in the state for it",
    "413": "The body is too large",
    "415": "The body is not application/json",
    "429": "A limit was met; Retry-After tells when to try again",
    "500": "Internal error; only an incident id is told",
    "503": "Starting, stopping or lagging; Retry-After tells when to try again",
    "504": "Out of time; repeat a write with the same request_id",
}

_CALLS: Final[tuple[tuple[str, str, type[BaseModel], type[BaseModel], str], ...]] = (
    ("write", "Write", models.WriteBody, answers.WriteAnswerBody, "Store, touch and update"),
    ("query", "Query", models.QueryBody, answers.QueryAnswerBody, "Find memories"),
    ("forget", "Forget", models.ForgetBody, answers.ForgetAnswerBody, "Erase or lower memories"),
)


def document(version: str, token_header: str, token_needed: bool) -> dict[str, Any]:
    """The whole document."""
    kinds = [*(c[2] for c in _CALLS), *(c[3] for c in _CALLS)]
    kinds += [answers.HealthAnswerBody, answers.ProblemAnswer]
    _, schema = models_json_schema([(kind, "validation") for kind in kinds], ref_template=_REF)
    schemas: dict[str, Any] = schema["$defs"]
    schemas["Filter"] = json_schema()
    _widen_namespace(schemas)
    paths: dict[str, Any] = {
        f"/v1/memory/{path}": {
            "post": {
                "operationId": name,
                "summary": text,
                "description": body.__doc__,
                "requestBody": {
                    "required": True,
                    "content": {
                        "application/json": {
                            "schema": _ref(body),
                            "examples": {"typical": {"value": EXAMPLES[path]}},
                        }
                    },
                },
                "responses": {"200": _content(answer), **_problems()},
            }
        }
        for path, name, body, answer, text in _CALLS
    }
    paths["/v1/memory/health"] = {
        "get": {
            "operationId": "Health",
            "summary": "How the node is",
            "responses": {"200": _content(answers.HealthAnswerBody)},
            "security": [{}, {"token": []}] if token_needed else [],
        }
    }
    paths.update(_plain_paths())
    result: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "memsvc",
            "version": version or "0",
            "description": "Long-term memory of agents. Times are UTC milliseconds.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": schemas},
    }
    if token_needed:
        result["components"]["securitySchemes"] = {
            "token": {"type": "apiKey", "in": "header", "name": token_header}
        }
        result["security"] = [{"token": []}]
    return result


def _ref(kind: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REF.format(model=kind.__name__)}


def _content(kind: type[BaseModel]) -> dict[str, Any]:
    text = (kind.__doc__ or "").split("\n")[0]
    return {"description": text, "content": {"application/json": {"schema": _ref(kind)}}}


def _problems() -> dict[str, Any]:
    schema = {MEDIA_TYPE: {"schema": _ref(answers.ProblemAnswer)}}
    return {status: {"description": text, "content": schema} for status, text in _ERRORS.items()}


def _widen_namespace(schemas: dict[str, Any]) -> None:
    # The model takes a list too, which its own schema cannot say.
    fields = schemas.pop("NamespaceBody")
    schemas["NamespaceBody"] = {
        "description": fields.pop("description"),
        "oneOf": [
            fields,
            {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 3},
        ],
    }


def _plain_paths() -> dict[str, Any]:
    def get(name: str, text: str, **responses: str) -> dict[str, Any]:
        listed = {code.lstrip("s"): {"description": what} for code, what in responses.items()}
        return {"get": {"operationId": name, "summary": text, "responses": listed, "security": []}}

    return {
        "/healthz": get("healthz", "Whether the process answers", s200="It does"),
        "/readyz": get("readyz", "Whether to send calls", s200="Yes", s503="Not now"),
        "/metrics": get("metrics", "Prometheus metrics", s200="Text format 0.0.4"),
        "/openapi.json": get("openapi", "This document", s200="OpenAPI 3.1"),
    }
