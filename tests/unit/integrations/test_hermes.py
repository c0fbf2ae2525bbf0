"""What the Hermes plugin decides by itself; tests/hermes has it in the real Hermes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner

from memsvc.cli import cli
from memsvc.integrations.hermes import breaker, tools
from memsvc.integrations.hermes.breaker import Breaker
from memsvc.integrations.hermes.settings import (
    Owner,
    Settings,
    SettingsError,
    load,
    owner_of,
    parsed,
    save,
    segment,
    settings_file,
)
from memsvc.integrations.hermes.shared import IDLE_SECONDS, Registry, SharedMemory
from tests.unit.client.fake import Running, refuse
from tests.waiting import until

# -- settings ------------------------------------------------------------------------------


def test_without_a_file_the_defaults_count_and_the_environment_says_where(tmp_path: Path) -> None:
    assert load(tmp_path, {}) == Settings()
    assert load(tmp_path, {"MEMSVC_ADDRESS": "a:1, b:2"}).addresses == ("a:1", "b:2")


def test_values_may_come_as_texts_and_empty_ones_are_the_default() -> None:
    found = parsed({"tls": "yes", "recall_seconds": "0.5", "token_budget": "300", "agent": ""})
    assert found == Settings(tls=True, recall_seconds=0.5, token_budget=300)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"adress": "a:1"}, "there is no such setting"),
        ({"scope": "everyone"}, "expected one of user, profile"),
        ({"embedder": "remote"}, "expected one of auto, local, none"),
        ({"keep": "some"}, "expected one of all, user, none"),
        ({"recall_seconds": 0.09}, "expected 0.1 to 3.5"),
        ({"recall_seconds": 3.51}, "expected 0.1 to 3.5"),
        ({"recall_seconds": "soon"}, "expected a number"),
        ({"recall_seconds": float("nan")}, "expected 0.1 to 3.5"),
        ({"token_budget": 49}, "expected 50 to 20,000"),
        ({"token_budget": 20_001}, "expected 50 to 20,000"),
        ({"tls": "perhaps"}, "expected true or false"),
        ({"tenant": "a/b"}, "without '/'"),
        ({"agent": "x" * 201}, "at most 200 bytes"),
        ({"tenant": 7}, "expected a text"),
        ({"address": " , "}, "expected HOST:PORT"),
        ({"cert_file": "c.pem"}, "go together"),
    ],
)
def test_a_wrong_setting_is_named_with_what_is_expected(
    values: dict[str, object], told: str
) -> None:
    with pytest.raises(SettingsError, match=next(iter(values))) as refused:
        parsed(values)
    assert told in str(refused.value)


def test_bounds_themselves_are_allowed() -> None:
    for values in ({"recall_seconds": 0.1, "token_budget": 50}, {"recall_seconds": 3.5},
                   {"token_budget": 20_000}, {"tenant": "x" * 200}):  # fmt: skip
        parsed(values)


@pytest.mark.parametrize("text", ["not json", "[1]", '{"scope": 1}'])
def test_a_broken_file_is_named(tmp_path: Path, text: str) -> None:
    path = settings_file(tmp_path)
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(SettingsError, match=str(path)):
        load(tmp_path, {})


def test_saving_keeps_what_is_not_given_and_refuses_what_is_wrong(tmp_path: Path) -> None:
    save({"tenant": "acme"}, tmp_path)
    save({"keep": "user"}, tmp_path)
    with pytest.raises(SettingsError):
        save({"scope": "everyone"}, tmp_path)
    assert json.loads(settings_file(tmp_path).read_text()) == {"tenant": "acme", "keep": "user"}


# -- whose memories ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("session", "agent"),
    [
        ({}, "default"),
        ({"agent_identity": "coder", "platform": "cli"}, "coder"),
        ({"platform": "telegram", "user_id": "7", "chat_id": "9"}, "default:telegram:7"),
        ({"platform": "discord", "user_id": "7"}, "default:discord:7"),
        ({"platform": "telegram", "chat_id": "9"}, "default:telegram:chat:9"),
    ],
)
def test_each_user_of_a_messenger_has_memories_of_their_own(
    session: dict[str, str], agent: str
) -> None:
    assert owner_of(Settings(), session) == Owner("hermes", agent)


def test_a_profile_may_share_them_and_an_agent_be_named() -> None:
    session = {"platform": "telegram", "user_id": "7", "agent_identity": "coder"}
    assert owner_of(Settings(scope="profile"), session).agent == "coder"
    assert owner_of(Settings(tenant="acme", agent="bot"), session) == Owner(
        "acme", "bot:telegram:7"
    )


def test_names_that_are_not_allowed_stay_different() -> None:
    names = ["a/b", "a_b", "a\nb", "x" * 300, "x" * 301, "会" * 100, "\ud800"]
    made = [segment(name) for name in names]
    assert len(set(made)) == len(names)
    for name in made:
        assert len(name.encode()) <= 200 and "/" not in name and name.isprintable()
    assert segment("x" * 200) == "x" * 200


def test_nobody_can_choose_a_name_that_is_that_of_a_chat_or_of_another_user() -> None:
    """The name of a user comes from a messenger, and some let people choose it."""
    taken = owner_of(Settings(), {"platform": "irc", "user_id": "x/y"}).agent
    sessions: list[dict[str, str]] = [
        {"platform": "irc", "chat_id": "5"},
        {"platform": "irc", "user_id": "chat:5"},
        {"platform": "irc:chat", "user_id": "5"},
        {"platform": "irc", "user_id": "chat", "agent_identity": "default:irc"},
        {"platform": "irc", "user_id": "x/y"},
        {"platform": "irc", "user_id": taken.split(":", 2)[2]},
        {"platform": "irc", "user_id": "@ann:example.org"},
    ]
    owners = [owner_of(Settings(), session).agent for session in sessions]
    forged = {"platform": "irc", "user_id": owners[1].split(":", 2)[2]}
    assert len({*owners, owner_of(Settings(), forged).agent}) == len(sessions) + 1
    assert owners[0] == "default:irc:chat:5"
    plain = "9d2f4f5e-8a86-4b6e-9f0e-426614174000"
    assert segment(plain) == plain


# -- what a tool tells -----------------------------------------------------------------------


def shared_over(running: Running, folder: Path) -> SharedMemory:
    settings = Settings(address=running.address, embedder="none")
    return SharedMemory(settings, Owner("acme", "bot"), None, folder)


def told(memory: SharedMemory, text: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(tools.call(memory, "s", "memsvc_remember", {"text": text}))
    return answer


def test_a_fact_that_the_service_refuses_is_not_called_remembered(
    running: Running, tmp_path: Path
) -> None:
    def hook(call: str, request: Any, context: grpc.ServicerContext) -> None:
        if call == "Write":
            refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "no such topic", reason="WRONG")

    memory = shared_over(running, tmp_path)
    assert told(memory, "Ann is vegan.") == {"remembered": True}
    running.service.hook = hook
    answer = told(memory, "Ann eats no nuts.")
    assert "remembered" not in answer and "no such topic [WRONG]" in answer["error"]
    memory.close()


def test_what_waits_in_memory_only_is_not_said_to_be_on_disk(
    running: Running, tmp_path: Path
) -> None:
    folder = tmp_path / "file"
    folder.touch()
    running.service.hook = lambda call, request, context: refuse(
        context, grpc.StatusCode.UNAVAILABLE, "not now", reason="STARTING"
    )
    for place, where in ((folder, "kept in memory only"), (tmp_path / "folder", "kept on disk")):
        memory = shared_over(running, place)
        assert where in told(memory, "Ann is vegan.")["note"]
        memory.close()


# -- not asking in vain --------------------------------------------------------------------


def test_after_failures_in_a_row_one_attempt_a_minute_decides() -> None:
    now = 0.0
    one = Breaker(lambda: now)
    for _ in range(breaker.FAILURES - 1):
        one.failed()
    assert one.allows()
    one.succeeded()
    for _ in range(breaker.FAILURES):
        assert one.allows()
        one.failed()
    assert not one.allows()
    now += breaker.PAUSE_SECONDS
    assert one.allows() and not one.allows()
    one.failed()
    assert not one.allows()
    now += breaker.PAUSE_SECONDS
    assert one.allows()
    one.succeeded()
    assert one.allows() and one.allows()


def test_memories_outlive_their_agents_for_a_while_and_no_longer(tmp_path: Path) -> None:
    now = 0.0
    registry = Registry(lambda: now, most_idle=2)
    settings = Settings(address="127.0.0.1:9", embedder="none", recall_seconds=0.1)

    def taken(agent: str) -> SharedMemory:
        return registry.take(settings, Owner("t", agent), None, tmp_path)

    first = taken("a")
    assert taken("a") is first
    registry.give_back(first)
    now += IDLE_SECONDS + 1
    second = taken("b")
    assert taken("a") is first  # one agent had it still
    for _ in range(2):
        registry.give_back(first)
    now += IDLE_SECONDS
    registry.give_back(taken("c"))
    assert taken("a") is first
    registry.give_back(first)
    now += IDLE_SECONDS + 1
    third = taken("c")
    until(lambda: first.closed)
    assert taken("a") is not first

    for one in (second, third):
        now += 1
        registry.give_back(one)
    registry.give_back(taken("d"))
    taken("e")
    until(lambda: second.closed)
    assert taken("c") is third


# -- the folder ----------------------------------------------------------------------------


def test_the_plugin_is_installed_brought_up_to_date_and_removed(tmp_path: Path) -> None:
    def run(command: str, home: Path = tmp_path) -> tuple[int, str]:
        done = CliRunner().invoke(cli, ["hermes", command, "--hermes-home", str(home)])
        return done.exit_code, done.output

    folder = tmp_path / "plugins" / "memsvc"
    assert run("uninstall") == (0, "there is no plugin to remove\n")
    assert run("install")[0] == 0
    (folder / "cli.py").unlink()
    assert run("install")[0] == 0 and (folder / "cli.py").exists()
    # Hermes takes a folder for a memory provider by the beginning of this file.
    assert "register_memory_provider" in (folder / "__init__.py").read_text()[:8192]
    assert run("uninstall")[0] == 0 and not folder.exists()
    folder.mkdir()
    (folder / "__init__.py").write_text("# somebody else's")
    for command in ("install", "uninstall"):
        code, said = run(command)
        assert code == 1 and "something else" in said
    code, said = run("install", tmp_path / "nowhere")
    assert code == 1 and "no such folder" in said
