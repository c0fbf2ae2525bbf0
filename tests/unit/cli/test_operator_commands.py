"""health, inspect, degrade, maintain, reload, token, tenant, config."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from memsvc.cli import COMMANDS, rebuilding
from memsvc.cli.dedup import normalised
from memsvc.cli.failures import Failure
from memsvc.cli.operate import asked_for
from memsvc.cli.output import age, clean, cut, size, width
from memsvc.domain.types import Namespace
from memsvc.service.tokens import TokenStore
from memsvc.v1 import memory_service_pb2 as pb
from tests.certificates import Pair, make_pair
from tests.unit.cli.support import Commands


def test_health_is_an_exit_code(memsvc: Commands) -> None:
    well = memsvc.run("health")
    assert well.exit_code == 0 and well.stdout.startswith("ready") and "512" in well.stdout
    assert memsvc.json("health")["store"]["dimension"] == 512
    memsvc.service.ready = False
    ill = memsvc.run("health")
    assert ill.exit_code == 1 and "starting" in ill.stdout
    memsvc.running.stop()
    assert memsvc.run("health").exit_code == 3


def test_health_of_a_replica_that_is_level_says_so(memsvc: Commands) -> None:
    assert "lag" not in memsvc.run("health").stdout
    memsvc.service.role = pb.ROLE_REPLICA
    assert "0 positions, 0 ms" in memsvc.run("health").stdout


def test_config_check_notes_a_file_that_is_not_there(memsvc: Commands, tmp_path: Path) -> None:
    missing = tmp_path / "token"
    settings = ("--set", f"replication.token_file={missing}")
    assert f"no file {missing}" in memsvc.run("config", "check", *settings).stdout
    missing.write_text("secret")
    assert "no file" not in memsvc.run("config", "check", *settings).stdout
    settings = ("--set", "auth.mode=token", "--set", f"auth.tokens_file={tmp_path / 'tokens'}")
    assert "auth.tokens_file: there is no" in memsvc.run("config", "check", *settings).stdout


def test_config_check_finds_a_certificate_that_clients_will_refuse(
    memsvc: Commands, tmp_path: Path
) -> None:
    def check(pair: Pair, key: Pair | None = None) -> str:
        cert = ("--set", f"server.tls.cert_file={pair.cert}")
        return memsvc.run(
            "config", "check", *cert, "--set", f"server.tls.key_file={(key or pair).key}"
        ).stdout

    good = make_pair(tmp_path, "good", days=100)
    assert "certificate" not in check(good)
    assert "expires in 4 days" in check(make_pair(tmp_path, "soon", days=4.5))
    assert "certificate has expired" in check(make_pair(tmp_path, "over", days=-1))
    assert "is not the key of" in check(good, make_pair(tmp_path, "other", days=100))


def test_health_can_wait_for_a_start(memsvc: Commands) -> None:
    memsvc.service.ready = False
    asked: list[str] = []

    def later(call: str, request: object, context: object) -> None:
        asked.append(call)
        memsvc.service.ready = len(asked) == 3

    memsvc.service.hook = later
    assert memsvc.run("health", "--wait", "60s").exit_code == 0
    assert asked == ["Health"] * 3


def test_waiting_for_a_replica_does_not_end_before_it_is_level(memsvc: Commands) -> None:
    service = memsvc.service
    service.role, service.lag_ms = pb.ROLE_REPLICA, 900
    assert memsvc.run("health").exit_code == 0
    behind = memsvc.run("health", "--max-lag", "0s")
    assert behind.exit_code == 1 and "further behind than --max-lag" in behind.stdout
    assert memsvc.run("health", "--max-lag", "1s").exit_code == 0
    asked: list[str] = []

    def later(call: str, request: object, context: object) -> None:
        asked.append(call)
        service.lag_ms = 0 if len(asked) == 3 else 900

    service.hook = later
    assert memsvc.run("health", "--wait", "60s", "--max-lag", "0s").exit_code == 0
    assert len(asked) == 3
    # A primary is behind nobody.
    service.role = pb.ROLE_PRIMARY
    assert memsvc.run("health", "--max-lag", "0s").exit_code == 0


def test_inspect_degrade_maintain_and_reload_say_what_they_did(memsvc: Commands) -> None:
    assert "head: 3" in memsvc.run("inspect", "acme/assistant", "--log", "5").stdout
    request = memsvc.service.calls("Inspect")[0]
    assert (request.tenant, request.agent, request.log_tail) == ("acme", "assistant", 5)
    assert memsvc.json("inspect")["log"] == {"head": 3}
    assert "level 3 (forced)" in memsvc.run("degrade", "3", "--reason", "drill").stdout
    assert "level 0 (automatic)" in memsvc.run("degrade", "auto").stdout
    forced, released = memsvc.service.calls("SetDegraded")
    assert forced.HasField("level") and not released.HasField("level")
    assert memsvc.json("degrade", "0")["forced"] is True
    assert "nothing is left" in memsvc.run("maintain", "--purge", "--wait", "1s").stdout
    assert memsvc.run("maintain").exit_code == 2
    reloaded = memsvc.run("reload").stdout
    assert "log.level" in reloaded and "server.workers" in reloaded


def test_rebuild_tells_how_far_it_is_and_how_it_ended(
    memsvc: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuilding, "POLL_S", 0.01)
    assert "no rebuild yet" in memsvc.run("rebuild", "status").stdout
    assert "4 segments to build anew, about 3" in memsvc.run("rebuild", "start", "--dry-run").stdout
    assert "running: 0 of 4 segments" in memsvc.run("rebuild", "start", "acme/a", "--all").stdout
    asked = memsvc.service.calls("StartRebuild")[-1]
    assert (asked.tenant, asked.agent, asked.everything) == ("acme", "a", True)
    told = memsvc.run("rebuild", "start", "--wait")
    assert told.exit_code == 0 and "done: 4 of 4 segments, 100% of 1,000 rows" in told.stdout
    assert memsvc.json("rebuild", "status")["state"] == "DONE"
    assert "cancelled: 2 of 4" in memsvc.run("rebuild", "cancel").stdout


def test_a_rebuild_that_left_segments_as_they_were_is_an_exit_code(memsvc: Commands) -> None:
    failed = memsvc.service.rebuild("FAILED", 0)
    failed.failures.add(tenant="acme", agent="a", segment="s1", reason="recall is 0.5")
    failed.graphs_outdated = 1
    memsvc.service.rebuilds.append(failed)
    told = memsvc.run("rebuild", "status", "--wait")
    assert told.exit_code == 1
    assert "stayed as it was: acme/a segment s1: recall is 0.5" in told.stdout
    assert "1 segment with graphs of other settings: memsvc rebuild start" in told.stdout


def test_inspect_shows_what_was_asked_for_and_says_when_there_is_none() -> None:
    entry = {"position": 7, "time": 1_700_000_000_123}
    facts = {"memories": 3, "partition": {"rows": 2}, "memory": [entry], "log": [entry]}
    where = Namespace("acme", "bot")
    assert asked_for(facts, where, False, 0, "") == {"partition": {"rows": 2}}
    told = asked_for(facts, where, False, 0, "m1")
    assert told == {"memory": [{"position": 7, "time": "2023-11-14T22:13:20.123Z"}]}
    assert set(asked_for(facts, None, True, 0, "")) == set(facts)
    with pytest.raises(Failure, match="no agent acme/bot"):
        asked_for({"partition": None}, where, False, 0, "")
    with pytest.raises(Failure, match="m1"):
        asked_for({"partition": {}, "memory": []}, where, False, 0, "m1")


def test_a_token_made_here_opens_the_service_and_a_revoked_one_does_not(
    memsvc: Commands, tmp_path: Path
) -> None:
    file = tmp_path / "tokens.yaml"
    there = ("--file", str(file))
    made = memsvc.run("token", "add", "bot", "-p", "acme/assistant", "-r", "read", *there)
    secret = made.stdout.strip()
    assert made.exit_code == 0 and secret.startswith("ms_")
    principal = TokenStore(file).authenticate(secret, int(time.time() * 1000))
    assert principal is not None and principal.allows("read", "acme", "assistant")
    assert not principal.allows("write", "acme", "assistant")
    again = memsvc.run("token", "add", "bot", "-p", "x", *there)
    assert again.exit_code == 1 and "revoke it first" in again.stderr
    memsvc.run("token", "add", "old", "-p", "*", "--expires", "1s", *there)
    listed = memsvc.run("token", "list", *there).stdout
    assert "bot" in listed and "acme/assistant" in listed and secret not in listed
    assert memsvc.json("token", "list", *there)[0]["rights"] == ["read"]
    assert memsvc.run("token", "revoke", "bot", *there).exit_code == 0
    assert memsvc.run("token", "revoke", "bot", *there).exit_code == 1
    assert TokenStore(file).authenticate(secret, int(time.time() * 1000)) is None


def test_tokens_go_where_the_configuration_says(memsvc: Commands, tmp_path: Path) -> None:
    config = tmp_path / "memsvc.yaml"
    config.write_text(f"storage:\n  data_dir: {tmp_path}/data\n")
    memsvc.run("token", "add", "bot", "-p", "acme", "--config", str(config))
    assert (tmp_path / "data" / "tokens.yaml").exists()
    config.write_text("storge: {}\n")
    refused = memsvc.run("token", "list", "--config", str(config))
    assert refused.exit_code == 78 and "storge" in refused.stderr


def fill(memsvc: Commands) -> None:
    for namespace, texts in (
        ("acme/a/s1", ("Likes  TEA", "Ｌｉｋｅｓ tea", "likes tea", "Plays chess")),
        ("acme/b", ("likes tea",)),
        ("other/a", ("likes tea",)),
    ):
        for i, text in enumerate(texts):
            memsvc.run(
                "write", "-n", namespace, text, "--no-dedup", "--embedder", "none",
                "--ts", str(1_700_000_000_000 + i), "--importance", str(0.2 + 0.2 * i),
            )  # fmt: skip


def test_tenants_are_listed_with_counts(memsvc: Commands) -> None:
    fill(memsvc)
    listed = memsvc.run("tenant", "list").stdout
    assert "acme/a" in listed and "2 tenants, 3 agents, 6 memories" in listed
    assert [one["agent"] for one in memsvc.json("tenant", "list", "acme")] == ["a", "b"]


def test_erasing_a_tenant_needs_its_name_twice(memsvc: Commands) -> None:
    fill(memsvc)
    assert (
        "4 memories of acme/a would be erased"
        in memsvc.run("tenant", "erase", "acme/a", "--dry-run").stdout
    )
    assert memsvc.run("tenant", "erase", "acme", "--confirm", "other").exit_code == 2
    assert memsvc.run("tenant", "erase", "acme", input="acm\n").exit_code == 2
    assert not any(not r.validate_only for r in memsvc.service.calls("EraseTenant"))
    asked = memsvc.run("tenant", "erase", "acme", "--reason", "contract", input="acme\n")
    assert asked.exit_code == 0 and "5 memories of acme erased" in asked.stdout
    assert list(memsvc.service.memories) == [("other", "a")]


def test_duplicates_are_only_told_about_by_default(memsvc: Commands) -> None:
    fill(memsvc)
    told = memsvc.run("tenant", "dedup", "acme")
    assert "acme/a: 2 duplicates of 1 text" in told.stdout and "nothing was changed" in told.stdout
    assert not memsvc.service.calls("Forget")


def test_of_duplicates_the_oldest_stays_with_the_highest_importance(memsvc: Commands) -> None:
    fill(memsvc)
    report = memsvc.json("tenant", "dedup", "acme", "--apply")
    assert report["agents"][0] == {"namespace": "acme/a", "duplicates": 2, "erased": 2}
    left = memsvc.service.memories["acme", "a"]
    assert sorted(hit.content for hit in left.values()) == ["Likes  TEA", "Plays chess"]
    kept = next(hit for hit in left.values() if hit.content == "Likes  TEA")
    assert kept.importance_stored == pytest.approx(0.6)
    assert kept.metadata.ts == 1_700_000_000_000
    assert len(memsvc.service.memories["acme", "b"]) == 1  # same text, another agent
    assert memsvc.json("tenant", "dedup", "acme", "--apply")["agents"][0]["erased"] == 0


def test_config_shows_checks_and_explains(memsvc: Commands, tmp_path: Path) -> None:
    file = tmp_path / "memsvc.yaml"
    file.write_text("query:\n  min_score: 0.3\n")
    shown = memsvc.run("config", "show", "--config", str(file)).stdout
    assert "min_score: 0.3" in shown and f"file:{file}:2" in shown
    assert "min_score: 0.3" in memsvc.run("config", MEMSVC_CONFIG=str(file)).stdout
    checked = memsvc.run("config", "check", "--config", str(file))
    assert checked.exit_code == 0 and "ok: 1 of" in checked.stdout
    bad = memsvc.run("config", "check", "--set", "index.dimensions=3")
    assert bad.exit_code == 78 and "did you mean index.dimension?" in bad.stderr
    assert memsvc.run("config", "check", "--set", "novalue").exit_code == 2
    assert "#min_score" in memsvc.run("config", "example").stdout


def test_serve_refuses_a_wrong_configuration_at_once(memsvc: Commands) -> None:
    result = memsvc.run("serve", "--set", "index.dimension=none")
    assert result.exit_code == 78 and "expected an integer" in result.stderr


def test_every_command_explains_itself_with_an_example(memsvc: Commands) -> None:
    for name in COMMANDS:
        result = memsvc.run(name, "--help")
        assert result.exit_code == 0 and "Usage: memsvc" in result.stdout, name
    overview = memsvc.run("--help").stdout
    assert all(f"  {name} " in overview for name in COMMANDS)
    assert "3 no service answers" in " ".join(overview.split())


def test_serve_loads_nothing_that_must_not_be_forked() -> None:
    code = (
        "import sys, json; from memsvc.cli import cli; import memsvc.cli.serve; "
        "heavy = [m for m in ('grpc', 'lmdb', 'usearch', 'numpy') if m in sys.modules]; "
        "print(json.dumps(heavy))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert json.loads(answer.stdout) == [], answer.stderr


def test_text_for_a_terminal() -> None:
    assert clean("a\x1b[2Jb\u202ec\nd") == "a�[2Jb�c d"
    assert (width("中a"), cut("中文字", 4), cut("abc", 3)) == (3, "中…", "abc")
    assert (age(10_000, 4_000), age(0, 7_200_000), age(5, 5)) == ("6s", "-2h", "now")
    assert (size(10), size(1536), size(3 << 40)) == ("10 B", "1.5 KiB", "3.0 TiB")
    assert normalised("Ａ  b\u0301 ") == normalised("a \u1e03") or normalised("Ａ b") == "a b"


def test_backup_of_a_node_elsewhere_says_where_to_run_it(memsvc: Commands, tmp_path: Path) -> None:
    done = memsvc.run("backup", "--to", str(tmp_path / "b"))
    assert done.exit_code == 1
    assert "/not/here" in done.stderr and "machine of the node" in done.stderr
    assert not (tmp_path / "b").exists()


def test_restore_and_verify_say_when_there_is_nothing(memsvc: Commands, tmp_path: Path) -> None:
    for command in (["verify", "."], ["restore", ".", "--to", "x"], ["backup", "--to", "x"]):
        where = [str(tmp_path / word) if word in (".", "x") else word for word in command]
        more = ["--data-dir", str(tmp_path)] if command[0] == "backup" else []
        done = memsvc.run(*where, *more)
        assert done.exit_code == 1, done.output
        assert "no snapshot" in done.stderr or "holds no store" in done.stderr
    both = memsvc.run("restore", ".", "--to", "x", "--at", "5", "--position", "5")
    assert both.exit_code == 2
