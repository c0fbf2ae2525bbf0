"""Sentences and pieces: bounds, and that nothing is lost."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memsvc.client.ingest.chunking import PieceSize, pieces
from memsvc.client.ingest.sentences import paragraphs, sentences


def told(text: str) -> list[str]:
    return [text[a:b] for a, b in sentences(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It rained. We stayed in.", ["It rained.", "We stayed in."]),
        ("Really?! Yes... fine.", ["Really?!", "Yes...", "fine."]),
        ('He said "go." Then he left.', ['He said "go."', "Then he left."]),
        ("Dr. Smith paid 3.50 at example.com.", ["Dr. Smith paid 3.50 at example.com."]),
        ("J. Smith came, e.g. on Monday.", ["J. Smith came, e.g. on Monday."]),
        ("It was I. She knew.", ["It was I.", "She knew."]),
        ("我喜欢茶。你呢？好！", ["我喜欢茶。", "你呢？", "好！"]),
        ("他说：“走吧。”然后走了。", ["他说：“走吧。”", "然后走了。"]),
        ("お茶が好き。でも熱い。", ["お茶が好き。", "でも熱い。"]),
        ("版本是3.5.1。OK. 好的", ["版本是3.5.1。", "OK.", "好的"]),
        ("- one\n- two\n\n- three", ["- one", "- two", "- three"]),
        ("هل تحب الشاي؟ نعم.", ["هل تحب الشاي؟", "نعم."]),
        ("no mark", ["no mark"]),
        ("  \n ", []),
    ],
)
def test_sentences_end_where_readers_of_the_language_see_it(text: str, expected: list[str]) -> None:
    assert told(text) == expected


def test_paragraphs_are_parted_by_blank_lines() -> None:
    text = "one\nstill one\n \n\n two \n\n\n"
    assert [text[a:b] for a, b in paragraphs(text)] == ["one\nstill one", "two"]


def test_a_short_text_is_one_piece_and_paragraphs_end_pieces() -> None:
    assert pieces(" short. ") == ["short."]
    one, two = "a" * 250 + ".", "b" * 240 + "."
    assert pieces(f"{one}\n\n{two}") == [one, two]
    small = "c" * 120 + "."
    assert pieces(f"{small}\n\n{small}") == [f"{small}\n\n{small}"]


def test_a_piece_under_100_joins_its_neighbour() -> None:
    long = ("w" * 49 + " ") * 9 + "w" * 40 + "."  # 491 characters
    assert pieces(f"{'x' * 60}.\n\n{'y' * 300}.") == [f"{'x' * 60}.\n\n{'y' * 300}."]
    found = pieces(f"{long} The very end.")
    assert len(found) == 2 and all(100 <= len(piece) <= 500 for piece in found)


def test_a_long_sentence_is_cut_at_a_clause_else_at_a_word_and_no_accent_is_parted() -> None:
    clause = "k" * 298 + ", " + "m " * 150 + "."
    assert pieces(clause)[0] == "k" * 298 + ","
    assert all(not piece.endswith("w") or piece.endswith("ww") for piece in pieces("www " * 300))
    for piece in pieces("e\u0301" * 700):
        assert not piece.startswith("\u0301")
    chinese = "我们去年在山里的小屋住了很久，" * 60
    assert all(piece.endswith("，") for piece in pieces(chinese))


SENTENCE = st.text(
    alphabet=st.sampled_from("abcdefghij  ,.?!\n今天去爬山。，！e\u0301"), min_size=0, max_size=700
)


@given(st.lists(SENTENCE, max_size=8), st.sampled_from([" ", "\n", "\n\n"]))
def test_pieces_keep_their_bounds_and_every_character(parts: list[str], between: str) -> None:
    text = between.join(parts)
    found = pieces(text)
    assert re.sub(r"\s", "", "".join(found)) == re.sub(r"\s", "", text)
    assert all(len(piece) <= 500 and piece == piece.strip() and piece for piece in found)
    if len(found) > 1:
        # Space where a piece ends is no part of it, so one of exactly 100 may come out shorter.
        spaces = max((len(one) for one in re.findall(r"\s+", text)), default=0)
        assert all(len(piece) >= 100 - spaces for piece in found)


@given(st.text(max_size=2_000), st.integers(1, 60), st.integers(1, 60), st.integers(0, 200))
def test_pieces_of_any_size(text: str, join: int, more: int, most: int) -> None:
    size = PieceSize(least=join + more, most=max(2 * join, join + more) + most, join_below=join)
    found = pieces(text, size)
    assert all(0 < len(piece) <= size.most for piece in found)
    assert "".join("".join(found).split()) == "".join(text.split())


@pytest.mark.parametrize("wrong", [(0, 10, 0), (200, 100, 50), (50, 100, 80), (60, 100, 60)])
def test_sizes_that_cannot_be_kept_are_refused(wrong: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="piece size: expected"):
        PieceSize(*wrong)
