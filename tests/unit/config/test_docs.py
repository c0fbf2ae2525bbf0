"""The written configuration says what the code does."""

import re
from pathlib import Path

import pytest

from memsvc.config import KEYS, KeyInfo, example, load, reference

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("info", KEYS.values(), ids=lambda info: info.name)
def test_no_setting_is_undocumented(info: KeyInfo) -> None:
    assert len(info.description) > 20
    assert info.description.endswith(".")
    assert info.expects


@pytest.mark.parametrize("info", KEYS.values(), ids=lambda info: info.name)
def test_no_number_is_without_unit(info: KeyInfo) -> None:
    assert info.unit or info.type not in (int,)


def test_no_zero_that_means_something_special_is_unexplained() -> None:
    for info in KEYS.values():
        if info.type is int and info.default == 0:
            assert "0:" in info.description, info.name


def test_reference_page_is_not_stale() -> None:
    text = (ROOT / "docs/reference/configuration.md").read_text(encoding="utf-8")
    assert text == reference(), "run `make docs`"


def test_example_file_is_not_stale() -> None:
    text = (ROOT / "deploy/memsvc.example.yaml").read_text(encoding="utf-8")
    assert text == example(), "run `make docs`"


def test_example_file_loads_as_it_is() -> None:
    effective = load(ROOT / "deploy/memsvc.example.yaml")
    assert set(effective.origins.values()) == {"default"}


def test_every_value_shown_in_the_example_can_be_taken(tmp_path: Path) -> None:
    path = tmp_path / "memsvc.yaml"
    path.write_text(re.sub(r"(?m)^( +)#(?=\w+: )", r"\1", example()), encoding="utf-8")
    effective = load(path, overrides={"server.allow_insecure": True})
    assert {name for name, origin in effective.origins.items() if origin != "default"} == set(KEYS)
