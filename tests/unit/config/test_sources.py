"""Settings: where a value comes from, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from memsvc.config import KEYS, ConfigError, Settings, load, render, value_of

OPEN = {"server.allow_insecure": True}


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "memsvc.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def refused(path: Path | None = None, **kwargs: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, **kwargs)
    return "\n".join(caught.value.problems)


def test_defaults_alone_are_a_valid_configuration() -> None:
    effective = load()
    assert set(effective.origins.values()) == {"default"}
    assert effective.settings.query.min_score == 0.62
    assert effective.settings.storage.wal_sync == "always"


def test_defaults_satisfy_their_own_constraints() -> None:
    for name, info in KEYS.items():
        load(overrides={**OPEN, name: info.default})


def test_environment_wins_over_file_and_overrides_win_over_both(tmp_path: Path) -> None:
    path = write(tmp_path, "index:\n  m: 8\n  ef_search: 10\n  dimension: 4\n")
    env = {"MEMSVC_INDEX__EF_SEARCH": "20", "MEMSVC_INDEX__DIMENSION": "5"}
    effective = load(path, env, {"index.dimension": 6})
    index = effective.settings.index
    assert (index.m, index.ef_search, index.dimension) == (8, 20, 6)
    assert effective.origins["index.m"] == f"file:{path}:2"
    assert effective.origins["index.ef_search"] == "env:MEMSVC_INDEX__EF_SEARCH"
    assert effective.origins["index.dimension"] == "override"
    assert effective.origins["index.metric"] == "default"


def test_sections_left_empty_keep_their_defaults(tmp_path: Path) -> None:
    path = write(tmp_path, "server:\nindex: {}\nquery:\n  # all commented out\n")
    assert load(path).settings == load().settings


def test_empty_file_is_the_defaults(tmp_path: Path) -> None:
    assert load(write(tmp_path, "")).settings == load().settings


def test_misspelt_key_in_the_file_is_refused_with_line_and_nearest_name(tmp_path: Path) -> None:
    path = write(tmp_path, "index:\n  m: 16\n  ef_serch: 64\n")
    assert f"{path}:3: index.ef_serch: unknown key; did you mean index.ef_search?" in refused(path)


def test_key_in_the_wrong_section_is_refused_with_the_right_one(tmp_path: Path) -> None:
    path = write(tmp_path, "limits:\n  write_queue_max: 10\n")
    assert "did you mean storage.write_queue_max?" in refused(path)


def test_unknown_section_is_refused(tmp_path: Path) -> None:
    assert ":1: sever: unknown key" in refused(write(tmp_path, "sever:\n  listen: a:1\n"))


def test_misspelt_variable_is_refused_naming_it() -> None:
    text = refused(env={"MEMSVC_INDEX__EF_SERCH": "1"})
    assert "environment MEMSVC_INDEX__EF_SERCH" in text
    assert "MEMSVC_INDEX__EF_SEARCH" in text


def test_variable_with_one_underscore_is_not_silently_ignored() -> None:
    assert "MEMSVC_SERVER__LISTEN" in refused(env={"MEMSVC_SERVER_LISTEN": "127.0.0.1:1"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MEMSVC_SERVICE_HOST", "10.0.0.1"),
        ("MEMSVC_SERVICE_PORT", "8848"),
        ("MEMSVC_SERVICE_PORT_GRPC", "8848"),
        ("MEMSVC_PORT", "tcp://10.0.0.1:8848"),
        ("MEMSVC_PORT_8848_TCP", "tcp://10.0.0.1:8848"),
        ("MEMSVC_PORT_8848_TCP_ADDR", "10.0.0.1"),
        ("MEMSVC_READ_PORT_8848_TCP_PROTO", "tcp"),
        ("MEMSVC_TOKEN", "ms_x"),
        ("PATH", "/bin"),
    ],
)
def test_variables_that_kubernetes_or_the_client_set_do_not_stop_the_server(
    name: str, value: str
) -> None:
    assert load(env={name: value}).settings == load().settings


def test_port_variable_that_is_no_service_link_is_refused() -> None:
    assert "MEMSVC_PORT" in refused(env={"MEMSVC_PORT": "9000"})


def test_bad_value_names_key_found_and_expected(tmp_path: Path) -> None:
    path = write(tmp_path, "index:\n  m: many\n")
    assert refused(path) == (
        f"{path}:2: index.m: found 'many', expected an integer from 2 to 128 (links)"
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("index.m", 1),
        ("index.m", True),
        ("index.m", "x"),
        ("index.m", 2.5),
        ("index.dtype", "f64"),
        ("index.attributes", ["a", "a"]),
        ("index.attributes", [f"a{i}" for i in range(33)]),
        ("index.attributes", "lang"),
        ("query.min_score", 1.5),
        ("query.min_score", float("nan")),
        ("query.min_score_by_namespace", {"acme": 0.5}),
        ("query.min_score_by_namespace", {"acme/": 0.5}),
        ("query.min_score_by_namespace", {"acme/bot": 2}),
        ("lifecycle.compact_cron", "0 3 * *"),
        ("lifecycle.decay_half_life_days", float("inf")),
        ("server.listen", "8848"),
        ("server.listen", ""),
        ("server.listen", "::1:8848"),
        ("server.listen", "localhost:99999"),
        ("server.allow_insecure", "maybe"),
        ("storage.wal_sync", "never"),
        ("storage.data_dir", None),
        ("auth.token_header", "X Token"),
        ("telemetry.otlp_endpoint", "collector:4318"),
    ],
)
def test_values_out_of_range_are_refused(name: str, value: object) -> None:
    text = refused(overrides={name: value})
    assert f"override: {name}: found" in text
    assert "expected" in text


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    path = write(tmp_path, "index:\n  m: many\n  nope: 1\nquery:\n  timeout_ms: -5\n")
    with pytest.raises(ConfigError) as caught:
        load(path, {"MEMSVC_NOPE__X": "1"})
    assert len(caught.value.problems) == 4


def test_key_given_twice_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "index:\n  m: 8\n  m: 9\n")
    assert f"{path}:3: index.m: given twice" in refused(path)


def test_broken_yaml_names_file_and_line(tmp_path: Path) -> None:
    path = write(tmp_path, "index:\n  m: [8\nquery: 1\n")
    assert refused(path).startswith(f"{path}:3: not valid YAML")


@pytest.mark.parametrize("text", ["- a\n- b\n", "just text\n", "index: 5\n"])
def test_file_that_is_not_a_mapping_is_refused(tmp_path: Path, text: str) -> None:
    assert "expected a mapping of keys" in refused(write(tmp_path, text))


def test_missing_file_is_refused(tmp_path: Path) -> None:
    assert "cannot be read" in refused(tmp_path / "none.yaml")


def test_lists_and_mappings_can_be_set_from_the_environment() -> None:
    env = {
        "MEMSVC_INDEX__ATTRIBUTES": "[lang, project]",
        "MEMSVC_QUERY__MIN_SCORE_BY_NAMESPACE": "{acme/bot: 0.5}",
    }
    settings = load(env=env).settings
    assert settings.index.attributes == ("lang", "project")
    assert settings.min_score("acme", "bot") == 0.5
    assert settings.min_score("acme", "other") == 0.62


def test_text_values_from_the_environment_are_taken_as_written() -> None:
    env = {"MEMSVC_INDEX__EMBEDDING": "1e3", "MEMSVC_AUTH__MODE": "none"}
    assert load(env=env).settings.index.embedding == "1e3"


def test_rendered_settings_load_again_and_tell_origins(tmp_path: Path) -> None:
    effective = load(
        env={"MEMSVC_INDEX__EMBEDDING": 'quo"te: # 记忆'},
        overrides={"query.min_score_by_namespace": {"acme/bot": 0.5}},
    )
    text = render(effective)
    again = load(write(tmp_path, text))
    assert again.settings == effective.settings
    assert "# env:MEMSVC_INDEX__EMBEDDING" in text
    assert '{"acme/bot": 0.5}  # override' in text


def test_rendered_settings_show_no_password_of_a_url() -> None:
    text = render(load(overrides={"telemetry.otlp_endpoint": "https://me:pw@host/v1"}))
    assert "pw" not in text
    assert "https://***@host/v1" in text


def test_settings_cannot_be_changed_in_place() -> None:
    settings = Settings()
    with pytest.raises(ValueError, match="frozen"):
        settings.index.m = 3


def test_value_of_unknown_name_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        value_of(Settings(), "index.nope")
