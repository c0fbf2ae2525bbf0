"""Reasons a caller could meet without finding them explained."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import memsvc
import replicas
from memsvc.domain.errors import Code
from memsvc.http.problems import REASON_STATUSES, STATUSES

PACKAGE = Path(memsvc.__file__).parent
DOCUMENT = PACKAGE.parent / "docs/reference/errors.md"
REASON = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*\Z")
# What a caller of the service can meet; the commands and the client have errors of their own.
EDGES = ("domain", "service", "store", "segments", "rpc", "http", "replication")


def constants(node: ast.AST) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            yield inner.value


def reasons_in(tree: ast.AST) -> tuple[set[str], set[str]]:
    """Reasons of errors, and of degraded answers."""
    errors: set[str] = set()
    degraded: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            if node.targets[0].id == "default_reason":
                errors.update(constants(node.value))
        elif isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            if name == "Degraded" and len(node.args) == 2:
                degraded.update(constants(node.args[1]))
            for keyword in node.keywords:
                if keyword.arg == "reason":
                    errors.update(constants(keyword.value))
        elif isinstance(node, ast.FunctionDef) and _raises_variable_reason(node):
            errors.update(text for text in constants(node) if "_" in text)
    return (
        {text for text in errors if REASON.match(text)},
        {text for text in degraded if REASON.match(text)},
    )


def _raises_variable_reason(function: ast.FunctionDef) -> bool:
    return any(
        isinstance(node, ast.Raise)
        and isinstance(node.exc, ast.Call)
        and any(
            keyword.arg == "reason" and isinstance(keyword.value, ast.Name)
            for keyword in node.exc.keywords
        )
        for node in ast.walk(function)
    )


def used() -> tuple[set[str], set[str]]:
    errors: set[str] = set(REASON_STATUSES)
    degraded: set[str] = set()
    paths = list(PACKAGE.glob("*.py"))
    for folder in EDGES:
        paths += (PACKAGE / folder).rglob("*.py")
    paths += Path(replicas.__file__).parent.glob("*.py")
    for path in paths:
        if "_pb2" not in path.name:
            found = reasons_in(ast.parse(path.read_text()))
            errors |= found[0]
            degraded |= found[1]
    return errors, degraded


def table(heading: str) -> list[list[str]]:
    section = DOCUMENT.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("| `")
    ]


def test_every_reason_of_an_error_is_documented() -> None:
    documented = {row[0].strip("`") for row in table("Every reason")}
    missing = used()[0] - documented
    assert not missing, f"add to docs/reference/errors.md: {sorted(missing)}"


def test_no_documented_reason_is_made_up() -> None:
    stale = {row[0].strip("`") for row in table("Every reason")} - used()[0]
    assert not stale, f"no longer used, remove from docs/reference/errors.md: {sorted(stale)}"


def test_every_reason_of_a_degraded_answer_is_documented() -> None:
    documented = {row[0].strip("`") for row in table("Reasons of degraded answers")}
    assert documented == used()[1]


def test_documented_statuses_are_those_that_are_sent() -> None:
    for reason, code, status, cause, action in table("Every reason"):
        name = reason.strip("`")
        assert cause and action, name
        expected = 500 if code == "INTERNAL" else STATUSES[Code(code)]
        assert int(status) == REASON_STATUSES.get(name, expected), name


def test_reasons_stand_in_order() -> None:
    names = [row[0] for row in table("Every reason")]
    assert names == sorted(names)
