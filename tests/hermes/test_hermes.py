"""The plugin in the real Hermes, with a real server."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from memsvc.client import MemoryClient, Mode
from memsvc.version import __version__
from tests.hermes.conftest import MakeHome
from tests.hermes.environment import Hermes, Home
from tests.hermes.model import Model
from tests.scenarios.harness import Node
from tests.waiting import until

PASSPORT = "My passport runs out in March 2027."
QUESTION = "When does my passport expire?"
TOOLS = ["memsvc_forget", "memsvc_get_full_text", "memsvc_recall", "memsvc_remember"]


def tell(hermes: Hermes, agent: str, text: str, session: str) -> None:
    """A turn is spoken, and its write handed on."""
    hermes.call("sync_all", agent, text, "Noted.", session_id=session)
    assert hermes.call("flush_pending", agent, 60)


def recalled(hermes: Hermes, agent: str, question: str = QUESTION, what: str = "March") -> str:
    """What is recalled about a question once it holds what is looked for."""
    found = ""

    def there() -> bool:
        nonlocal found
        found = hermes.call("prefetch_all", agent, question)
        return what in found

    until(there, what=lambda: f"{what} in {found!r}\n{hermes.errors()}")
    return found


def stored(node: Node, home: Home, agent: str = "default") -> list[str]:
    """What an agent remembers, as the server has it."""
    tenant = json.loads((home.folder / "memsvc/config.json").read_text())["tenant"]
    with MemoryClient(f"127.0.0.1:{node.port}") as client:
        answer = client.query(f"{tenant}/{agent}", mode=Mode.BROWSE, top_k=100)
        return [hit.summary for hit in answer.items]


# -- found and set up ----------------------------------------------------------------------


def test_listing_the_plugin_loads_nothing_heavy(shared_node: Node, make_home: MakeHome) -> None:
    home = make_home(shared_node)
    with Hermes(home) as hermes:
        found = hermes.call("discover")
        assert found["memsvc"][1] is True and found["memsvc"][0].startswith("memsvc")
        assert found["heavy"] == []
        assert hermes.call("by_entry_point") == "MemsvcMemoryProvider"
        assert hermes.call("panel") == {
            "address": "text", "tenant": "text", "scope": "select", "embedder": "select",
            "token": "secret",
        }  # fmt: skip


def test_a_missing_package_is_told_and_not_taken_for_a_missing_plugin(
    shared_node: Node, make_home: MakeHome
) -> None:
    with Hermes(make_home(shared_node), "--without-memsvc") as hermes:
        assert hermes.call("discover")["memsvc"][1] is False
        assert "pip install" in hermes.call("status")["problem"]
        assert hermes.call("start", "a", "s1") == []
        assert hermes.call("prefetch_all", "a", QUESTION) == ""


def test_setup_saves_what_was_answered_and_status_asks_the_server(
    shared_node: Node, make_home: MakeHome
) -> None:
    home = make_home(shared_node)
    (home.folder / "memsvc/config.json").unlink()
    home.config["memory"] = {}
    home.write_config()
    wrong, right = "somewhere/else", f"127.0.0.1:{shared_node.port}"
    answers = "\n".join([right, wrong, "acme", "", "none", "secret-token"]) + "\n"
    said = home.run("hermes", "memory", "setup", "memsvc", input=answers)
    assert f"not '{wrong}'" in said and "ready" in said
    assert json.loads((home.folder / "memsvc/config.json").read_text()) == {
        "address": right, "tenant": "acme", "scope": "user", "embedder": "none",
    }  # fmt: skip
    assert "MEMSVC_TOKEN=secret-token" in (home.folder / ".env").read_text()
    told = home.run("hermes", "memory", "status")
    for line in ("Provider:  memsvc", "acme/default", "server: ready", "available ✓", "words"):
        assert line in told
    assert "secret-token" not in told
    nobody = home.run("hermes", "memsvc", "status", MEMSVC_ADDRESS="127.0.0.1:9")
    assert "server: does not answer" in nobody
    (home.folder / "memsvc/config.json").write_text('{"scope": "everyone"}')
    refused = home.run("hermes", "memory", "status")
    assert "expected one of user, profile" in refused and "not available" in refused


def test_the_manifest_tells_the_version_of_the_package(make_home: MakeHome, node: Node) -> None:
    text = (make_home(node).folder / "plugins/memsvc/plugin.yaml").read_text()
    assert f"version: {__version__}\n" in text


# -- a conversation ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with Model() as model:
        yield model


def test_a_fact_outlives_agent_and_server_and_the_agent_a_server(
    node: Node, make_home: MakeHome, model: Model
) -> None:
    """Whole agents: one is told, one of another process is asked after a restart of the server,
    and one answers while there is none."""
    home = make_home(node)
    home.config["model"] = {
        "provider": "custom", "default": "m", "base_url": model.url, "api_key": "none",
        "context_length": 100_000,
    }  # fmt: skip
    home.write_config()
    said = home.run("hermes", "chat", "--quiet", "--toolsets", "memory", "--query", PASSPORT)
    assert "Noted." in said and "<memory-context>" not in model.message()
    until(lambda: bool(stored(node, home)), what=home.log)
    assert node.stop() == 0
    node.start()

    with Hermes(home) as hermes:

        def asked() -> bool:
            assert hermes.call("chat", model.url, QUESTION) == "Noted."
            return "March 2027" in model.message()

        until(asked, what=lambda: f"{model.message()}\n{hermes.errors()}")
        assert {tool["function"]["name"] for tool in model.asked[-1]["tools"]} >= set(TOOLS)
        assert "memsvc_recall" in model.asked[-1]["messages"][0]["content"]
        node.stop()
        assert hermes.call("chat", model.url, QUESTION) == "Noted."
        assert model.message() == QUESTION
        assert hermes.end() == 0


def test_sessions_share_memories_and_do_not_repeat_what_is_before_the_model(
    shared_node: Node, make_home: MakeHome
) -> None:
    with Hermes(make_home(shared_node)) as hermes:
        assert hermes.call("start", "a", "s1") == TOOLS
        assert "memsvc_recall" in hermes.call("build_system_prompt", "a")
        tell(hermes, "a", PASSPORT, "s1")
        hermes.call("start", "b", "s2")
        assert "March 2027" in recalled(hermes, "b")
        assert hermes.call("prefetch_all", "a", QUESTION) == ""

        hermes.call("on_session_switch", "a", "s3", parent_session_id="s1", reset=True)
        assert "March 2027" in recalled(hermes, "a")
        tell(hermes, "a", "The cat is called Minka.", "s3")
        assert "Minka" in recalled(hermes, "b", "What is the cat called?", "Minka")
        assert "Minka" not in hermes.call("prefetch_all", "a", "What is the cat called?")

        for agent in "ab":
            hermes.call("shutdown_all", agent)
            assert hermes.call("drained", agent)["status"] == "drained"
        assert hermes.end() == 0


def test_a_short_question_is_understood_by_what_was_said_before(
    shared_node: Node, make_home: MakeHome
) -> None:
    with Hermes(make_home(shared_node)) as hermes:
        hermes.call("start", "a", "s1")
        tell(hermes, "a", PASSPORT, "s1")
        hermes.call("start", "b", "s2")
        recalled(hermes, "b")
        assert hermes.call("prefetch_all", "b", "when?") == ""
        tell(hermes, "b", "I need to renew my passport.", "s2")
        recalled(hermes, "b", "when?")
        hermes.call("on_session_switch", "b", "s2", rewound=True)
        assert hermes.call("prefetch_all", "b", "when?") == ""


def test_users_of_a_messenger_do_not_see_each_other(shared_node: Node, make_home: MakeHome) -> None:
    home = make_home(shared_node)
    with Hermes(home) as hermes:
        hermes.call("start", "ann", "s1", platform="telegram", user_id="1")
        hermes.call("start", "bob", "s2", platform="telegram", user_id="2")
        hermes.call("start", "cron", "s3", platform="cron")
        tell(hermes, "ann", PASSPORT, "s1")
        tell(hermes, "cron", "A job ran.", "s3")
        until(lambda: bool(stored(shared_node, home, "default:telegram:1")))
        assert hermes.call("prefetch_all", "bob", QUESTION) == ""
        # Gateways make agents anew; the next one of the same user goes on where this one is.
        hermes.call("shutdown_all", "ann")
        hermes.call("start", "ann", "s4", platform="telegram", user_id="1")
        recalled(hermes, "ann")
        assert stored(shared_node, home) == []


def test_tools_remember_recall_read_and_forget(shared_node: Node, make_home: MakeHome) -> None:
    fact = "The bicycle is in the cellar, behind the shelf."
    with Hermes(make_home(shared_node)) as hermes:
        hermes.call("start", "a", "s1")
        assert hermes.tool("a", "memsvc_remember", text=fact)["remembered"] is True

        def found() -> bool:
            return bool(
                hermes.tool("a", "memsvc_recall", query="Where is the bicycle?")["memories"]
            )

        until(found, what=hermes.errors)
        (memory,) = hermes.tool("a", "memsvc_recall", query="Where is the bicycle?")["memories"]
        id_, _, said = memory.removeprefix("[").partition(" ")
        assert said.endswith(f"] {fact}")
        assert hermes.tool("a", "memsvc_get_full_text", id=id_)["text"] == fact
        one = [id_]
        assert hermes.tool("a", "memsvc_forget", ids=one) == {"mode": "fade", "memories": 1}
        erased = hermes.tool("a", "memsvc_forget", ids=one, mode="erase")
        assert erased == {"mode": "erase", "memories": 1}
        assert hermes.tool("a", "memsvc_recall", query="Where is the bicycle?")["memories"] == []
        wrong = {
            "memsvc_remember": [{}, {"text": " "}, {"text": 7}, {"text": "x" * 4_001}],
            "memsvc_recall": [{"query": None}],
            "memsvc_get_full_text": [{"id": "none such"}],
            "memsvc_forget": [{}, {"ids": []}, {"ids": [1]}, {"ids": ["a"] * 21}, {"ids": ["no"]},
                              {"ids": ["no"], "mode": "burn"}],
        }  # fmt: skip
        for name, calls in wrong.items():
            for arguments in calls:
                assert "error" in hermes.tool("a", name, **arguments), (name, arguments)


# -- when the server is away ---------------------------------------------------------------


def test_a_server_that_is_down_costs_nothing_and_gets_it_later(
    node: Node, make_home: MakeHome
) -> None:
    home = make_home(node)
    node.stop()
    with Hermes(home) as hermes:
        assert hermes.call("start", "a", "s1") == TOOLS
        assert hermes.call("prefetch_all", "a", QUESTION) == ""
        tell(hermes, "a", PASSPORT, "s1")
        assert "on disk" in hermes.tool("a", "memsvc_remember", text="Ann is vegan.")["note"]
        assert "UNREACHABLE" in hermes.tool("a", "memsvc_recall", query=QUESTION)["note"]
        assert "error" in hermes.tool("a", "memsvc_forget", ids=["1"])
        hermes.call("shutdown_all", "a")
        assert hermes.call("drained", "a")["status"] == "drained"
        hermes.kill()
    node.start()
    with Hermes(home) as hermes:
        hermes.call("start", "b", "s2")
        recalled(hermes, "b")
        recalled(hermes, "b", "What does Ann eat?", "vegan")


def test_what_another_process_left_is_written_while_a_third_one_runs(
    node: Node, make_home: MakeHome
) -> None:
    home = make_home(node)
    node.stop()
    with Hermes(home) as first, Hermes(home) as second:
        for hermes, name in ((first, "first"), (second, "second")):
            hermes.call("start", "a", name)
            tell(hermes, "a", f"The {name} process was here.", name)
            assert "on disk" in hermes.tool("a", "memsvc_remember", text=f"It is {name}.")["note"]
        assert len(list(home.folder.glob("memsvc/waiting-*.db"))) == 2
        first.kill()
        second.kill()
    node.start()
    with Hermes(home) as third:
        third.call("start", "a", "third")
        until(lambda: len(stored(node, home)) == 4, what=third.errors)


def test_a_server_that_hangs_is_waited_for_within_limits(node: Node, make_home: MakeHome) -> None:
    home = make_home(node, recall_seconds=0.5)
    with Hermes(home) as hermes:
        hermes.call("start", "a", "s1")
        tell(hermes, "a", PASSPORT, "s1")
        until(lambda: bool(stored(node, home)), what=hermes.errors)
        node.signal(signal.SIGSTOP)
        hermes.call("start", "b", "s2")
        for _ in range(8):
            assert hermes.call("prefetch_all", "b", QUESTION) == ""
            assert not hermes.call("stuck", "b")  # it came back by itself
        tell(hermes, "b", "The cat is called Minka.", "s2")
        assert "error" in hermes.tool("b", "memsvc_get_full_text", id="1")
        hermes.call("shutdown_all", "b")
        node.signal(signal.SIGCONT)
        until(lambda: any("Minka" in text for text in stored(node, home)), what=hermes.errors)


def test_a_store_of_another_model_is_searched_by_words(tmp_path: Path, make_home: MakeHome) -> None:
    node = Node(tmp_path / "other", index__dimension=16).start()
    try:
        with Hermes(make_home(node)) as hermes:
            hermes.call("start", "a", "s1")
            tell(hermes, "a", PASSPORT, "s1")
            hermes.call("start", "b", "s2")
            recalled(hermes, "b", "passport")
            assert "words only" in hermes.errors()
    finally:
        node.close()
