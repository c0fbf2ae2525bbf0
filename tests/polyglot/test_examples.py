"""The examples of all languages hold the same conversation with a real primary and its replica,
and are answered alike. The tools of the languages must be installed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

from examples.group import Group, Member
from examples.languages import EXAMPLES, GO, LANGUAGES, go_stubs
from examples.run import ANSWERS, SCRIPT, converse
from memsvc.client import MemoryClient
from tests.waiting import until

pytestmark = pytest.mark.polyglot
BALANCE_BY_HEALTH = {"python", "go", "java"}


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with Group(tmp_path_factory.mktemp("group")) as group:
        yield group


@cache
def built(language: str) -> str:
    """A language whose example is built, which is done once."""
    LANGUAGES[language].build()
    return language


@pytest.fixture(params=LANGUAGES)
def language(request: pytest.FixtureRequest) -> str:
    return built(request.param)


def all_converse(
    group: Group, script: Path = SCRIPT
) -> dict[str, subprocess.CompletedProcess[str]]:
    """What the examples of all languages say when they run at the same time."""
    languages = [built(language) for language in LANGUAGES]
    with ThreadPoolExecutor() as pool:
        results = pool.map(lambda one: converse(one, group.nodes, group.token, script), languages)
        return dict(zip(languages, results, strict=True))


def counted(group: Group, member: Member, metric: str, **labels: str) -> float:
    """A counter of a node, added up over the labels that are not given."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{member.http}/metrics", headers={"X-Memory-Token": group.admin_token}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    wanted = {f'{name}="{value}"' for name, value in labels.items()}
    return sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith(metric + "{") and wanted <= set(re.findall(r'\w+="[^"]*"', line))
    )


def answered(group: Group, member: Member) -> float:
    """Reads that a node answered."""
    name = "memsvc_call_duration_seconds_count"
    return counted(group, member, name, call="Query", code="OK")


def test_the_conversation_is_answered_alike_in_every_language(group: Group, language: str) -> None:
    nodes = (group.primary, group.replica)

    def queries() -> list[float]:
        return [answered(group, node) for node in nodes]

    def refused(reason: str) -> list[float]:
        return [counted(group, node, "memsvc_errors_total", reason=reason) for node in nodes]

    before, misled = queries(), refused("NOT_PRIMARY")
    result = converse(language, group.nodes, group.token)
    assert result.returncode == 0, result.stderr
    assert result.stdout == ANSWERS.read_text(encoding="utf-8"), result.stderr
    for now, then in zip(queries(), before, strict=True):
        assert now > then, "reads go to every node that is fit"
    if language in BALANCE_BY_HEALTH:
        assert refused("NOT_PRIMARY") == misled, "changes go to the node that takes them"
    else:
        assert sum(refused("NOT_PRIMARY")) == sum(misled) + 1, "one refusal names the primary"


def test_calls_were_refused_with_a_delay_and_sent_again(group: Group) -> None:
    # Of all languages together: on a slow machine one alone may stay below the limit.
    nodes = (group.primary, group.replica)
    assert sum(counted(group, one, "memsvc_errors_total", reason="RATE_LIMITED") for one in nodes)


def test_answers_are_those_of_the_script() -> None:
    script = json.loads(ANSWERS.with_name("conversation.json").read_text(encoding="utf-8"))
    answers = [json.loads(line) for line in ANSWERS.read_text(encoding="utf-8").splitlines()]
    assert [one["step"] for one in answers] == [one["step"] for one in script["steps"]]
    for one in answers:
        assert ("refused" in one) == bool(
            re.match("refused|no time|a correction of what", one["step"])
        )


def test_every_language_goes_on_after_a_switch_over(group: Group) -> None:
    with MemoryClient(group.replica.address, token=group.admin_token) as client:
        client.admin.promote()
    group.primary, group.replica = group.replica, group.primary
    group.wait_ready()
    for language, result in all_converse(group).items():
        assert result.returncode == 0, language + result.stderr
        assert result.stdout == ANSWERS.read_text(encoding="utf-8"), language + result.stderr


def test_a_replica_killed_under_reads_fails_no_call_of_any_language(
    group: Group, tmp_path: Path
) -> None:
    shutil.copytree(EXAMPLES / "service-config", tmp_path / "service-config")
    script = json.loads(SCRIPT.read_text(encoding="utf-8"))
    burst = {"step": "reads", "call": "burst", "text": "dog", "times": 100}
    script["steps"] = [script["steps"][0], burst]
    path = tmp_path / "conversation.json"
    path.write_text(json.dumps(script))

    def killer(start: float) -> None:
        # Every example waits for its limit long before its hundredth read.
        enough = start + 5 * len(LANGUAGES)
        until(lambda: answered(group, group.replica) > enough, 60, "reads at the replica")
        group.replica.kill()

    for language in LANGUAGES:
        built(language)
    with ThreadPoolExecutor() as pool:
        killing = pool.submit(killer, answered(group, group.replica))
        results = all_converse(group, path)
        killing.result()
    for language, result in results.items():
        assert result.returncode == 0, language + result.stderr
        told = json.loads(result.stdout.splitlines()[-1])
        assert told == {"step": "reads", "answered": 100, "alike": True}, language + result.stderr


def test_the_committed_stubs_of_go_are_those_of_the_protos(tmp_path: Path) -> None:
    go_stubs(tmp_path)
    made = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*.go")}
    committed = {path.relative_to(GO): path.read_text() for path in (GO / "gen").rglob("*.go")}
    assert made.keys() == committed.keys()
    for path, text in made.items():
        assert text == committed[path], f"{path} is outdated: make stubs LANG=go"
