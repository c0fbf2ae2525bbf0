"""What the project depends on is declared, justified and pinned."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = list(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        lines += extra
    return {canonical(re.split(r"[\[<>=!~; ]", line, maxsplit=1)[0]) for line in lines}


def test_every_dependency_has_a_justification_and_no_justification_is_orphaned() -> None:
    text = (ROOT / "docs/dependencies.md").read_text(encoding="utf-8")
    justified = re.findall(r"(?m)^- \*\*(.+?)\*\*: \S.{10,}$", text)
    assert {canonical(name) for name in justified} == declared()


def test_every_dependency_is_pinned() -> None:
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    pinned = {canonical(name) for name in re.findall(r"(?m)^([\w.-]+)==\S+$", text)}
    assert declared() <= pinned, "run `make lock`"


def test_lock_file_names_only_packages_and_versions() -> None:
    for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines():
        assert re.fullmatch(r"#.*|[\w.-]+==[\w.+!-]+", line), line
