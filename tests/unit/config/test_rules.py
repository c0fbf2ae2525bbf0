"""Rules that span several settings, and what a reload may change."""

import pytest

from memsvc.config import (
    KEYS,
    ConfigError,
    Settings,
    load,
    merge_reload,
    parse_listen,
    reload_diff,
    value_of,
)

TOKEN = {"auth.mode": "token"}


def test_default_listener_without_tokens_is_not_reachable_from_outside() -> None:
    effective = load()
    assert effective.settings.server.listen == "127.0.0.1:8848"
    assert "auth.mode" in effective.notes["server.listen"]


def test_default_listener_with_tokens_is_reachable() -> None:
    assert load(overrides=TOKEN).settings.server.listen == "0.0.0.0:8848"


def test_default_listener_opens_when_insecure_is_allowed_and_says_so() -> None:
    effective = load(overrides={"server.allow_insecure": True})
    assert effective.settings.server.listen == "0.0.0.0:8848"
    assert "without tokens" in effective.notes["server.listen"]


@pytest.mark.parametrize("name", ["server.listen", "server.http_listen"])
@pytest.mark.parametrize("address", ["0.0.0.0:8848", "[::]:8848", "10.0.0.5:1", "example.org:1"])
def test_configured_open_listener_without_tokens_is_refused_with_a_hint(
    name: str, address: str
) -> None:
    with pytest.raises(ConfigError, match=r"auth\.mode: token") as caught:
        load(overrides={name: address})
    assert name in caught.value.problems[0]
    load(overrides={name: address, "server.allow_insecure": True})
    load(overrides={name: address, **TOKEN})


@pytest.mark.parametrize("address", ["127.0.0.1:0", "127.3.2.1:5", "[::1]:8848", "localhost:8848"])
def test_loopback_needs_no_tokens(address: str) -> None:
    assert load(overrides={"server.listen": address}).settings.server.listen == address


def test_tokens_without_tls_are_warned_about() -> None:
    assert "unencrypted" in load(overrides=TOKEN).notes["server.listen"]


def test_http_can_be_switched_off() -> None:
    assert load(env={"MEMSVC_SERVER__HTTP_LISTEN": ""}).settings.server.http_listen == ""


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        ({"query.default_top_k": 300}, "query.default_top_k"),
        ({"query.max_top_k": 10}, "query.default_top_k"),
        ({"server.tls.cert_file": "a.pem"}, "server.tls.key_file"),
        ({"server.tls.key_file": "a.pem"}, "server.tls.cert_file"),
        ({"server.tls.client_ca_file": "a.pem"}, "server.tls.client_ca_file"),
        ({"node.role": "replica"}, "replication.primary"),
        ({"node.role": "primary"}, "replication.listen"),
        ({"replication.listen": "127.0.0.1:1"}, "replication.listen"),
        (
            {"node.role": "primary", "replication.listen": "0.0.0.0:8850"},
            "replication.token_file",
        ),
    ],
)
def test_contradictions_are_refused(overrides: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(overrides=overrides)
    assert any(key in problem for problem in caught.value.problems)


def test_tokens_default_to_the_data_directory() -> None:
    settings = load(overrides={"storage.data_dir": "/var/lib/memsvc"}).settings
    assert str(settings.tokens_path) == "/var/lib/memsvc/tokens.yaml"


def test_ipv6_listen_address_survives_a_round_trip() -> None:
    address = parse_listen("[::1]:8848")
    assert (address.host, address.port, str(address)) == ("::1", 8848, "[::1]:8848")


def test_reload_diff_tells_what_a_running_server_cannot_take() -> None:
    old = load().settings
    new = load(
        overrides={"query.timeout_ms": 5, "index.attribute_columns": 8, "log.level": "debug"}
    ).settings
    assert reload_diff(old, new) == (["query.timeout_ms", "log.level"], ["index.attribute_columns"])
    assert reload_diff(old, old) == ([], [])


def test_merged_reload_keeps_what_needs_a_restart() -> None:
    old = load()
    new = load(overrides={"query.timeout_ms": 5, "index.attribute_columns": 8})
    merged = merge_reload(old, new)
    assert merged.settings.query.timeout_ms == 5
    assert merged.origins["query.timeout_ms"] == "override"
    assert merged.settings.index.attribute_columns == 64
    assert merged.origins["index.attribute_columns"] == "default"
    assert merged.settings.server.listen == old.settings.server.listen


def test_every_setting_can_be_read_by_name() -> None:
    settings = Settings()
    for name, info in KEYS.items():
        assert value_of(settings, name) == info.default


def test_replicas_are_not_asked_to_confirm_what_is_on_no_disk() -> None:
    group = {
        "node.role": "primary",
        "replication.listen": "127.0.0.1:1",
        "replication.nodes": ["127.0.0.1:1", "127.0.0.1:2"],
        "replication.min_acks": 1,
    }
    load(overrides=group)
    with pytest.raises(ConfigError, match="min_acks") as caught:
        load(overrides={**group, "storage.wal_sync": "every_1000ms"})
    assert "storage.wal_sync: expected always" in caught.value.problems[0]


@pytest.mark.parametrize("key", ["storage.data_dir", "auth.tokens_file"])
def test_a_path_that_is_not_utf8_is_refused_by_name(key: str) -> None:
    """As an argument in another encoding is: the database and the readers could not be told it."""
    with pytest.raises(ConfigError, match=rf"{key}.*UTF-8") as caught:
        load(overrides={key: "/srv/caf\udce9"})
    str(caught.value).encode()
    assert load(overrides={key: "/srv/café"})
