"""The file ROLE: what is remembered, and when the configuration counts anew."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from memsvc.config import Settings
from memsvc.domain.errors import FailedPrecondition
from memsvc.domain.group import Role
from replicas.role import read_role, write_role


def settings_of(role: str, primary: str = "") -> Settings:
    return Settings.model_validate(
        {"node": {"role": role}, "replication": {"listen": "127.0.0.1:1", "primary": primary}}
    )


REPLICA = settings_of("replica", "p:1")


def test_without_a_file_the_settings_count(tmp_path: Path) -> None:
    assert read_role(tmp_path, REPLICA) == Role(False, "p:1", configured="replica p:1")
    assert read_role(tmp_path, settings_of("primary")) == Role(True, configured="primary")


def test_a_role_is_read_as_it_was_written_also_over_another(tmp_path: Path) -> None:
    first = replace(read_role(tmp_path, REPLICA), address="c:1", min_acks=2)
    write_role(tmp_path, first)
    assert read_role(tmp_path, REPLICA) == first
    promoted = first.leading(7)
    write_role(tmp_path, promoted)
    assert read_role(tmp_path, REPLICA) == promoted


def test_changed_settings_count_anew_and_the_fence_stays(tmp_path: Path) -> None:
    write_role(tmp_path, read_role(tmp_path, REPLICA).leading(7))
    found = read_role(tmp_path, settings_of("replica", "q:1"))
    assert found == Role(False, "q:1", fence=7, configured="replica q:1")


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 2}', '{"format": 1, "more": 1}'])
def test_a_file_that_is_not_one_of_this_software_is_not_guessed_at(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "ROLE").write_text(text)
    with pytest.raises(FailedPrecondition, match="ROLE cannot be read"):
        read_role(tmp_path, REPLICA)
