"""Files that an operator broke while the server runs: it keeps what it has, and says so."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from memsvc.config import load
from memsvc.config.loading import ConfigError
from memsvc.service.tokens import TokensFileError, TokenStore, parse_tokens
from memsvc.service.tokens_edit import add_token
from tests.scenarios.harness import Node, by_word, fill
from tests.waiting import until

BROKEN: dict[str, bytes] = {
    "no end": b"server: [",
    "unknown key": b"nope: 1",
    "not UTF-8": b"\xff\xfe\x00",
    "control character": b"\x00",
    "date of month 99": b"log:\n  level: 2001-99-99\n",
    "number of 6,000 digits": b"server:\n  read_timeout_ms: " + b"9" * 6_000,
    "contains itself": b"server: &s {listen: *s}\n",
    "list that contains itself": b"index:\n  attributes: &s [*s]\n",
    "nested without end": b"a: " + b"[" * 20_000,
    "a mapping as key": b"? [a]\n: b\n",
    "a call": b"a: !!python/object/apply:os.system [x]\n",
    "not base64": b'a: !!binary "zz%"\n',
    "bad cron": b'lifecycle:\n  compact_cron: "61 * * * *"\n',
}


@pytest.mark.parametrize("name", BROKEN)
def test_configuration_that_is_no_configuration_is_refused_as_such(
    name: str, tmp_path: Path
) -> None:
    file = tmp_path / "memsvc.yaml"
    file.write_bytes(BROKEN[name])
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert all(str(file) in problem for problem in caught.value.problems)


@pytest.mark.parametrize(
    "text",
    [
        "version: 1\ntokens: 2001-99-99",
        "version: " + "9" * 6_000,
        "a: " + "[" * 20_000,
        "version: 1\ntokens: &t [*t]",
        "\0",
        "version: 1\ntokens: [{name: x, sha256: 1, prefixes: [], rights: []}]",
        "- 1",
        "",
    ],
    ids=lambda text: repr(text[:30]),
)
def test_tokens_file_that_is_no_tokens_file_keeps_the_tokens_in_force(
    text: str, tmp_path: Path
) -> None:
    file = tmp_path / "tokens.yaml"
    token = add_token(file, "good", ["*"], ["read"])
    store = TokenStore(file)
    with pytest.raises(TokensFileError):
        parse_tokens(text, "tokens.yaml")
    file.write_text(text)
    assert store.authenticate(token, 10_000_000) is not None
    assert not store.reload()
    assert store.error is not None
    assert "9999" not in store.error


def _refused(node: Node, times: int) -> bool:
    return node.log_file.read_text().count("not reloaded") >= times


def test_reload_of_a_broken_configuration_does_not_end_the_server(tmp_path: Path) -> None:
    node = Node(tmp_path / "node")
    try:
        node.start()
        fill(node, [1])
        good = node.config.read_bytes()
        for number, broken in enumerate(BROKEN.values(), 1):
            node.config.write_bytes(broken)
            node.signal(signal.SIGHUP)
            until(partial(_refused, node, number), what=f"refusal {number}")
        node.config.unlink()
        node.signal(signal.SIGHUP)
        until(lambda: "cannot be read" in node.log_tail(3), what="a file that is gone")
        os.mkdir(node.config)
        node.signal(signal.SIGHUP)
        until(lambda: node.log_tail(3).count("cannot be read") == 2, what="a folder")
        assert len(by_word(node, "word1x").items) == 1
        os.rmdir(node.config)
        node.config.write_bytes(good.replace(b"timeout_ms: 20000", b"timeout_ms: 19000"))
        node.signal(signal.SIGHUP)
        until(lambda: "reloaded; changed: ['query.timeout_ms']" in node.log_tail(3))
        assert "Traceback" not in node.log_file.read_text()
    finally:
        node.close()
