"""What a query must find, however document and query were typed, and what must never raise."""

from __future__ import annotations

import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memsvc.text.folding import fold_text
from memsvc.text.tokenize import (
    MAX_QUERY_TERMS,
    MAX_TERM_CHARS,
    MAX_TERMS,
    query_terms,
    terms,
)

# Includes lone surrogates and NUL, which st.text() leaves out unless asked.
ANY_TEXT = st.text(st.characters(min_codepoint=0, exclude_categories=()), max_size=80)
MIXED = st.lists(
    st.sampled_from(list("aZ09_-./@:\\'+# \0é中国カﾞが서울ภา\u0301\u3099\ud800हि'")), max_size=60
).map("".join)


def finds(query: str, document: str) -> bool:
    """Every term of the query is one of the document's."""
    asked = query_terms(query)
    return bool(asked) and set(asked) <= set(terms(document))


@pytest.mark.parametrize(
    ("query", "document"),
    [
        ("猫", "我家的猫很可爱"),
        ("咖啡", "他每天早上喝咖啡再去上班"),
        ("喝", "他每天早上喝咖啡再去上班"),
        ("我", "我住在上海"),  # a stop character, but all that was asked
        ("花", "きれいな花が咲いた"),
        ("서울", "서울에서 친구를 만났다"),
        ("집", "우리집은 작다"),
        ("ไทย", "ฉันชอบอาหารไทยมาก"),
        ("𠮷", "𠮷野家で食べた"),
    ],
)
def test_short_queries_find_words_inside_sentences_without_spaces(
    query: str, document: str
) -> None:
    assert finds(query, document)


def test_a_two_character_word_does_not_ask_for_its_characters() -> None:
    assert query_terms("北京") == ["北京"]
    assert not finds("北京", "我去了东京")


def test_chinese_function_characters_are_dropped_from_questions() -> None:
    asked = query_terms("我喜欢什么颜色")
    assert "颜色" in asked
    assert "什么" not in asked and "我" not in asked


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ＰＹＴＨＯＮ３．１１", "python3.11"),
        ("ﾊﾟｿｺﾝ", "パソコン"),
        ("がぎぐ", unicodedata.normalize("NFD", "がぎぐ")),
        ("한국어", unicodedata.normalize("NFD", "한국어")),
        ("café", "CAFÉ"),
        ("café", unicodedata.normalize("NFD", "café")),
        ("naïve Zoë", "naive zoe"),
        ("Straße", "STRASSE"),
        ("İstanbul", "istanbul"),
        ("Łódź", "lodz"),
        ("ΟΔΥΣΣΕΥΣ", "οδυσσευς"),
        ("ёлка", "елка"),
        ("Don’t", "don't"),
        ("co\u00adoperate", "cooperate"),
        ("مُحَمَّد", "محمد"),
        ("１２３", "123"),
    ],
)
def test_forms_of_one_word_have_the_same_terms(one: str, other: str) -> None:
    assert terms(one) == terms(other) != []
    assert finds(one, other) and finds(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [("か", "が"), ("ハ", "パ"), ("и", "й"), ("कि", "की"), ("ㅏ", "ㅓ"), ("2.26", "226")],
)
def test_marks_and_points_that_make_another_word_are_kept(one: str, other: str) -> None:
    assert terms(one) != terms(other)


@pytest.mark.parametrize(
    ("query", "document"),
    [
        ("deepseek-v4-flash", "We moved from GPT to deepseek-v4-flash."),
        ("deepseek v4 flash", "We moved from GPT to deepseek-v4-flash."),
        ("deepseek", "DeepSeek answered"),
        ("DEEPSEEK-V4", "模型换成deepseek-v4了"),
        ("/mnt/data/x.py", "saved as /mnt/data/x.py, then run"),
        ("x.py", "saved as /mnt/data/x.py, then run"),
        ("C:\\Temp\\notes.txt", "it is in c:\\temp\\notes.txt"),
        ("ann.lee@example.com", "write to Ann.Lee@Example.com!"),
        ("example.com", "write to ann@example.com"),
        ("2.26.6", "usearch 2.26.6 is pinned"),
        ("2.26.6", "tag v2.26.6"),
        ("2.26", "usearch 2.26.6 is pinned"),
        ("max_queue_len", "set max_queue_len to 5"),
        ("queue", "set max_queue_len to 5"),
        ("memory service", "class MemoryService:"),
        ("memoryservice", "class MemoryService:"),
        ("MemoryService", "类 MemoryService 在这里"),
        ("python", "needs python3.11"),
        ("wifi", "the Wi-Fi password"),
        ("C++", "I write C++ at work"),
        ("C#", "I write C# at work"),
        ("https://example.com/a/b?id=7", "see https://example.com/a/b?id=7."),
        ("__init__", "edit __init__.py"),
        ("running", "she runs every day"),
        ("Caroline", "Caroline's sister"),
        ("e3b0c44298fc1c149afbf4c8996fb924", "hash e3b0c44298fc1c149afbf4c8996fb924 ok"),
    ],
)
def test_hard_facts_are_found(query: str, document: str) -> None:
    assert finds(query, document)


@pytest.mark.parametrize(
    ("query", "document", "joined"),
    [
        ("DeepSeek_V4", "the model is deepseek-v4", "deepseekv4"),
        ("iPhone", "an old iphone", "iphon"),
        ("data/x.py", "saved as /mnt/data/x.py", "datax"),
    ],
)
def test_differently_written_names_meet_in_the_joined_form(
    query: str, document: str, joined: str
) -> None:
    assert joined in query_terms(query) and joined in terms(document)


def test_cpp_and_c_sharp_are_told_apart() -> None:
    assert not finds("C#", "I write C++ at work")


@pytest.mark.parametrize(
    "text", ['"a b" OR c*', "NEAR(x, y)", "-not +must ^4", "field:value", "a:b AND (c", "%_[]{}"]
)
def test_operators_of_other_engines_are_plain_text(text: str) -> None:
    asked = query_terms(text)
    assert set(asked) <= set(terms(text))
    assert query_terms(text.replace('"', " ").replace("*", " ")) == asked


def test_stop_words_are_dropped_unless_they_are_all_there_is() -> None:
    assert query_terms("What did Ann buy?") == ["ann", "buy"]
    assert query_terms("The Who") == ["the", "who"]
    assert finds("The Who", "a ticket for The Who")


def test_nothing_searchable_gives_no_terms() -> None:
    for text in ("", " \t\n", "!?…。、", "🎉", "\0", "\ud800\udfff"):
        assert terms(text) == [] == query_terms(text)


@given(st.one_of(ANY_TEXT, MIXED))
def test_no_text_raises_and_every_term_can_be_stored(text: str) -> None:
    indexed, asked = terms(text), query_terms(text)
    for term in indexed:
        assert 0 < len(term) <= MAX_TERM_CHARS
        assert term.encode("utf-8").decode("utf-8") == term
        assert not any(char.isspace() for char in term)
    assert set(asked) <= set(indexed)
    assert len(asked) == len(set(asked))
    assert bool(asked) == bool(indexed)


@given(st.one_of(ANY_TEXT, MIXED))
def test_normal_forms_do_not_matter(text: str) -> None:
    expected = terms(unicodedata.normalize("NFC", text))
    for form in ("NFD", "NFKC", "NFKD"):
        assert terms(unicodedata.normalize(form, text)) == expected


@given(st.text(st.characters(max_codepoint=127), max_size=60))
def test_the_fast_path_for_ascii_agrees_with_the_general_one(text: str) -> None:
    assert [*terms(text), "界"] == terms(text + " 界")


@given(ANY_TEXT)
def test_folding_twice_changes_nothing(text: str) -> None:
    assert fold_text(fold_text(text)) == fold_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "a." * 5_000_000,
        "中" * 10_000_000,
        "x" * 10_000_000,
        "aB" * 5_000_000,
        "é." * 5_000_000,
        "a" + "\u0300\u0316" * 2_000_000,
        "\ufdfa" * 1_000_000,  # one character that NFKC turns into eighteen
        "ก" + "\u0e31" * 3_000_000,
        "'" * 10_000_000,
    ],
    ids=["dots", "han", "word", "humps", "accents", "marks", "expanding", "thai", "quotes"],
)
def test_huge_texts_take_bounded_work(text: str) -> None:
    begin = time.process_time()
    assert len(terms(text)) <= MAX_TERMS
    assert len(query_terms(text)) <= MAX_QUERY_TERMS
    assert time.process_time() - begin < 10  # measured: at most 1.2 s
