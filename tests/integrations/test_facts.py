"""Single facts against a real node."""

from __future__ import annotations

import pytest

from memsvc.client import ClientError, ForgetMode, HashingEmbedder, MemoryClient, Namespace
from memsvc.client.facts import RECREATIONS, Facts
from tests.scenarios.conftest import MakeNode

SPACE = Namespace("acme", "assistant")


def test_a_fact_is_stored_once_and_a_forgotten_one_anew_up_to_a_bound(make_node: MakeNode) -> None:
    node = make_node(index__dimension=64).start()
    with MemoryClient(f"127.0.0.1:{node.port}") as client:
        words = Facts(client, SPACE, None)
        meaning = Facts(client, SPACE, HashingEmbedder(64), source="test")
        first = meaning.remember("I prefer short answers.", session="s1", topic="style")
        assert first.created and first.has_vector
        (hit,) = client.query(SPACE, ids=[first.id]).items
        assert hit.metadata.importance == pytest.approx(0.8) and hit.session == "s1"
        assert (hit.metadata.topic, hit.metadata.source) == ("style", "test")
        for facts, text in (
            (meaning, " I  prefer short answers.\n"),
            (meaning, "i PREFER short answers"),
            (words, "I prefer  short answers."),
        ):
            again = facts.remember(text, importance=0.9)
            assert not again.created and again.id == first.id, text
        (hit,) = client.query(SPACE, ids=[first.id]).items
        assert hit.metadata.importance == pytest.approx(0.9)
        assert words.remember("I prefer long answers.").has_vector is False

        ids = set()
        for _ in range(RECREATIONS):
            made = words.remember("The key is under the mat.")
            assert made.created
            ids.add(made.id)
            client.forget(SPACE, ids=[made.id], mode=ForgetMode.HARD)
        assert len(ids) == RECREATIONS
        with pytest.raises(ClientError, match="forgotten 50 times") as caught:
            words.remember("The key is under the mat.")
        assert caught.value.hint == "remember it in other words"
