"""A document that would not describe what the server does."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from memsvc.domain.filters import NUMBER_FIELDS, TEXT_FIELDS
from memsvc.http import models, openapi, render
from memsvc.http.problems import REASON_STATUSES, STATUSES, TITLES


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        render.dumps(openapi.document("1.2.3", "X-Memory-Token", True))
    )
    return found


def references(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for inner in node.values():
            yield from references(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from references(inner)


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    names = set(document["components"]["schemas"])
    for reference in references(document):
        assert reference.removeprefix("#/components/schemas/") in names, reference


def test_document_is_of_the_version_it_says(document: dict[str, Any]) -> None:
    assert document["openapi"] == "3.1.0" and document["info"]["version"] == "1.2.3"
    assert set(document["paths"]) == {
        "/v1/memory/write",
        "/v1/memory/query",
        "/v1/memory/forget",
        "/v1/memory/health",
        "/healthz",
        "/readyz",
        "/metrics",
        "/openapi.json",
    }
    paths = document["paths"].values()
    operations = [next(iter(path.values()))["operationId"] for path in paths]
    assert len(set(operations)) == len(operations)
    scheme = document["components"]["securitySchemes"]["token"]
    assert scheme == {"type": "apiKey", "in": "header", "name": "X-Memory-Token"}


def test_examples_are_read_as_they_stand(document: dict[str, Any]) -> None:
    readers = {
        "write": models.read_write,
        "query": models.read_query,
        "forget": models.read_forget,
    }
    for call, read in readers.items():
        content = document["paths"][f"/v1/memory/{call}"]["post"]["requestBody"]["content"]
        for example in content["application/json"]["examples"].values():
            read(json.dumps(example["value"]))


def test_unknown_fields_are_told_to_be_refused(document: dict[str, Any]) -> None:
    for name, schema in document["components"]["schemas"].items():
        for part in schema.get("oneOf", [schema]):
            if part.get("type") == "object":
                assert part["additionalProperties"] is False, name


def test_filter_schema_knows_the_fields_of_the_domain(document: dict[str, Any]) -> None:
    fields = set(document["components"]["schemas"]["Filter"]["properties"])
    assert fields == {"status", "and", "or", "not", *TEXT_FIELDS, *NUMBER_FIELDS}
    (pattern,) = document["components"]["schemas"]["Filter"]["patternProperties"]
    assert re.search(pattern, "attributes.city") and not re.search(pattern, "attributes.")


def test_every_status_that_is_sent_is_described(document: dict[str, Any]) -> None:
    described = {int(s) for s in document["paths"]["/v1/memory/write"]["post"]["responses"]}
    # Those of a caller who is gone, of other paths, and of a slow or foreign sender aside.
    sent = {*STATUSES.values(), *REASON_STATUSES.values()} - {499, 501, 405, 408}
    assert described == {200, 500, *sent}
    assert set(TITLES) == set(STATUSES)
