"""Tokens: who gets in, how far, and what happens to the file."""

import hmac
import logging
import os
import stat
import threading
from pathlib import Path

import pytest
import yaml

from memsvc.service import tokens as tokens_module
from memsvc.service.tokens import Principal, Right, TokensFileError, TokenStore, hash_token
from memsvc.service.tokens_edit import add_token, list_tokens, new_token, revoke_token

NOW = 1_700_000_000_000
ALL = tuple(Right)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens.yaml"


def write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)


def holder(*prefixes: str) -> Principal:
    return Principal("someone", prefixes, frozenset({Right.READ}))


# --- who gets in --------------------------------------------------------------------------


def test_added_token_is_accepted_and_others_are_not(path: Path) -> None:
    token = add_token(path, "bot", ["acme"], ["read", "write"])
    store = TokenStore(path)
    principal = store.authenticate(token, NOW)
    assert principal == Principal("bot", ("acme",), frozenset({Right.READ, Right.WRITE}))
    for wrong in ("", token[:-1], token + "x", token.upper(), hash_token(token), "ms_\udcff", "密"):
        assert store.authenticate(wrong, NOW) is None


def test_token_expires_at_its_time_and_not_before(path: Path) -> None:
    token = add_token(path, "bot", ["acme"], ["read"], expires_at=NOW)
    store = TokenStore(path)
    assert store.authenticate(token, NOW - 1) is not None
    assert store.authenticate(token, NOW) is None


def test_every_entry_is_compared_so_that_time_tells_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = add_token(path, "a", ["acme"], ["read"])
    for name in "bcd":
        add_token(path, name, ["acme"], ["read"])
    store = TokenStore(path)
    compared: list[str] = []

    class Counting:
        @staticmethod
        def compare_digest(left: str, right: str) -> bool:
            compared.append(left)
            return hmac.compare_digest(left, right)

    monkeypatch.setattr(tokens_module, "hmac", Counting)
    store.authenticate(first, NOW)
    assert len(compared) == 4


# --- how far ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prefix", "target", "allowed"),
    [
        ("acme", ("acme", "bot", "s1"), True),
        ("acme", ("acme", "bot", None), True),
        ("acme", ("acme", None, None), True),
        ("acme", ("acme-corp", "bot", None), False),
        ("acme-corp", ("acme", "bot", None), False),
        ("acme", ("Acme", "bot", None), False),
        ("acme/bot", ("acme", "bot", "s:1:x"), True),
        ("acme/bot", ("acme", "bot2", None), False),
        ("acme/bot", ("acme", None, None), False),
        ("acme/bot", ("acme", "", "bot"), False),
        ("acme/bot/s1", ("acme", "bot", "s1"), True),
        ("acme/bot/s1", ("acme", "bot", "s12"), False),
        ("acme/bot/s1", ("acme", "bot", None), False),
        ("acme", (None, None, None), False),
        ("*", (None, None, None), True),
        ("*", ("acme", "bot", "s1"), True),
        ("acme", ("acme/bot", "x", None), False),
        ("acme/bot", ("acme/bot", None, None), False),
    ],
)
def test_prefixes_match_whole_segments_only(
    prefix: str, target: tuple[str | None, str | None, str | None], allowed: bool
) -> None:
    assert holder(prefix).allows("read", *target) is allowed


def test_any_of_several_prefixes_is_enough() -> None:
    principal = holder("acme/bot", "other")
    assert principal.allows("read", "other", "x")
    assert principal.allows("read", "acme", "bot")
    assert not principal.allows("read", "acme", "x")


@pytest.mark.parametrize("right", ALL)
def test_no_right_implies_another(right: Right) -> None:
    principal = Principal("one", ("*",), frozenset({right}))
    assert [other for other in ALL if principal.allows(other, "acme", "bot")] == [right]


def test_unknown_right_is_never_allowed() -> None:
    assert not holder("*").allows("root", "acme", "bot")


def test_without_namespace_scope_rights_still_count(path: Path) -> None:
    token = add_token(path, "bot", ["acme"], ["read"])
    principal = TokenStore(path, namespace_scope=False).authenticate(token, NOW)
    assert principal is not None
    assert principal.allows("read", "other", "bot")
    assert not principal.allows("write", "other", "bot")


# --- the file changes ---------------------------------------------------------------------


def test_change_of_the_file_is_noticed_without_restart(path: Path) -> None:
    add_token(path, "a", ["acme"], ["read"])
    store = TokenStore(path)
    store.authenticate("x", NOW)
    token = add_token(path, "b", ["acme"], ["read"])
    assert store.authenticate(token, NOW + 1000) is not None
    revoke_token(path, "b")
    assert store.authenticate(token, NOW + 2000) is None


def test_file_is_looked_at_once_a_second_and_on_demand(path: Path) -> None:
    add_token(path, "a", ["acme"], ["read"])
    store = TokenStore(path)
    store.authenticate("x", NOW)
    token = add_token(path, "b", ["acme"], ["read"])
    assert store.authenticate(token, NOW + 999) is None
    assert store.reload()
    assert store.authenticate(token, NOW + 999) is not None


def test_clock_set_back_does_not_stop_the_checks(path: Path) -> None:
    add_token(path, "a", ["acme"], ["read"])
    store = TokenStore(path)
    store.authenticate("x", NOW)
    token = add_token(path, "b", ["acme"], ["read"])
    assert store.authenticate(token, NOW - 3_600_000) is not None


@pytest.mark.parametrize("text", ["tokens: [", "version: 2\ntokens: []", "", "- x", None])
def test_broken_file_keeps_the_last_good_tokens_and_reports(
    path: Path, text: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    token = add_token(path, "a", ["acme"], ["read"])
    store = TokenStore(path)
    with caplog.at_level(logging.WARNING):
        if text is None:
            path.unlink()
        else:
            write(path, text)
        for second in range(1, 5):
            assert store.authenticate(token, NOW + second * 1000) is not None
    assert store.error is not None
    assert str(path) in store.error
    assert len(caplog.records) == 1, "complained about once, not with every call"
    write(path, "version: 1\ntokens: []\n")
    assert store.authenticate(token, NOW + 9000) is None
    assert store.error is None


def test_missing_or_broken_file_at_start_is_an_error_with_a_hint(path: Path) -> None:
    with pytest.raises(TokensFileError, match="memsvc token add"):
        TokenStore(path)
    write(path, "version: 1\ntokens: [{name: a}]\n")
    with pytest.raises(TokensFileError, match=r"tokens\.0\.sha256"):
        TokenStore(path)


ENTRY = {"name": "a", "sha256": "0" * 64, "prefixes": ["acme"], "rights": ["read"]}


def write_entries(path: Path, *entries: dict[str, object]) -> None:
    write(path, yaml.safe_dump({"version": 1, "tokens": list(entries)}))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sha256", "ms_secretsecretsecret"),
        ("sha256", "A" * 64),
        ("sha256", 5),
        ("prefixes", ["acme/*"]),
        ("prefixes", ["acme//x"]),
        ("prefixes", ["a/b/c/d"]),
        ("prefixes", [""]),
        ("prefixes", "acme"),
        ("rights", ["root"]),
        ("expires_at", "2026-01-01T00:00:00Z"),
        ("expires_at", -1),
        ("expires_at", 1.5),
        ("expired_at", 1),
        ("name", ""),
    ],
)
def test_bad_entry_is_refused_without_quoting_it(path: Path, field: str, value: object) -> None:
    write_entries(path, ENTRY | {field: value})
    with pytest.raises(TokensFileError, match=rf"tokens\.0\.{field}") as caught:
        TokenStore(path)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("same", ["name", "sha256"])
def test_two_entries_for_one_name_or_token_are_refused(path: Path, same: str) -> None:
    write_entries(path, ENTRY, ENTRY | {"name": "b", "sha256": "1" * 64, same: ENTRY[same]})
    with pytest.raises(TokensFileError, match=f"same {same}"):
        TokenStore(path)


@pytest.mark.parametrize(
    ("mode", "word"),
    [(0o600, None), (0o400, None), (0o640, "read"), (0o604, "read"), (0o660, "ch")],
)
def test_file_open_to_others_gets_a_warning_until_it_is_closed(
    path: Path, mode: int, word: str | None
) -> None:
    add_token(path, "a", ["acme"], ["read"])
    path.chmod(mode)
    store = TokenStore(path)
    assert (store.warning is None) if word is None else word in (store.warning or "")
    path.chmod(0o600)
    store.authenticate("x", NOW)
    assert store.warning is None


# --- the file is edited -------------------------------------------------------------------


def test_token_is_32_random_bytes_and_recognisable() -> None:
    token = new_token(lambda count: bytes(range(count)))
    assert token == "ms_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"
    assert new_token(os.urandom) != new_token(os.urandom)


def test_file_never_holds_the_token_and_is_private(path: Path) -> None:
    old_mask = os.umask(0)
    try:
        token = add_token(path, "a", ["acme"], ["read"])
    finally:
        os.umask(old_mask)
    assert token not in path.read_text(encoding="utf-8")
    assert token[3:] not in path.read_text(encoding="utf-8")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_adding_keeps_the_others(path: Path) -> None:
    first = add_token(path, "甲", ["acme/机器人"], ["read"], expires_at=NOW + 1)
    add_token(path, "b", ["*"], ALL)
    assert [entry.name for entry in list_tokens(path)] == ["甲", "b"]
    principal = TokenStore(path).authenticate(first, NOW)
    assert principal is not None
    assert principal.allows("read", "acme", "机器人")


@pytest.mark.parametrize(
    ("prefixes", "rights"),
    [(["acme/*"], ["read"]), (["acme"], ["root"]), ([], ["read"]), (["acme"], [])],
)
def test_bad_addition_leaves_the_file_as_it_was(
    path: Path, prefixes: list[str], rights: list[str]
) -> None:
    add_token(path, "a", ["acme"], ["read"])
    before = path.read_bytes()
    with pytest.raises(TokensFileError):
        add_token(path, "b", prefixes, rights)
    with pytest.raises(TokensFileError, match="revoke it first"):
        add_token(path, "a", ["acme"], ["read"])
    assert path.read_bytes() == before


def test_broken_file_is_not_overwritten_by_an_addition(path: Path) -> None:
    write(path, "tokens: [")
    with pytest.raises(TokensFileError):
        add_token(path, "a", ["acme"], ["read"])
    assert path.read_text(encoding="utf-8") == "tokens: ["


def test_revoking_an_unknown_name_says_so(path: Path) -> None:
    assert not revoke_token(path, "a")
    add_token(path, "a", ["acme"], ["read"])
    assert not revoke_token(path, "b")
    assert revoke_token(path, "a")
    assert list_tokens(path) == ()


def test_crash_while_writing_leaves_the_old_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_token(path, "a", ["acme"], ["read"])

    def crash(_descriptor: int) -> None:
        raise OSError("power loss")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", crash)
        with pytest.raises(OSError, match="power loss"):
            add_token(path, "b", ["acme"], ["read"])
    assert [entry.name for entry in list_tokens(path)] == ["a"]
    add_token(path, "c", ["acme"], ["read"])
    assert [entry.name for entry in list_tokens(path)] == ["a", "c"]


def test_concurrent_additions_lose_none(path: Path) -> None:
    threads = [
        threading.Thread(target=add_token, args=(path, f"t{i}", ["acme"], ["read"]))
        for i in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list_tokens(path)) == 12
