"""The page on deployment, walked through: secured by tokens and TLS, backed up, grown into a group,
every node replaced, restored. Commands and files are those of the page; names of hosts, ports and
folders are this machine's."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from memsvc.cli import cli
from tests.cli.live import CLEAN, ROOT
from tests.ports import free_port
from tests.waiting import until

PAGE = (ROOT / "docs/howto/deployment.md").read_text(encoding="utf-8")
NAMES = ("node-1", "node-2", "node-3")
PORTS = (8848, 8849, 8850, 9464)


class Machine:
    """One of the machines of the page, as a folder."""

    def __init__(self, folder: Path, name: str, ports: dict[str, dict[int, int]]) -> None:
        self.name, self.folder, self._ports = name, folder / name, ports
        self.etc, self.var = self.folder / "etc/memsvc", self.folder / "var/lib/memsvc/main"
        (self.etc / "tls").mkdir(parents=True)
        self.var.mkdir(parents=True)
        self.address = f"localhost:{ports[name][8848]}"
        self.tls = ("--address", self.address, "--ca-file", str(self.etc / "tls/ca.crt"))
        self.token = ""
        self.process: subprocess.Popen[bytes] | None = None

    def take(self, role: str, **changes: str) -> None:
        """An example configuration as /etc/memsvc/main.yaml, with ``changes`` of its words."""
        text = (ROOT / f"deploy/config/{role}.yaml").read_text()
        if role == "replica":
            text = text.replace("advertise: node-2", f"advertise: {self.name}")
        for old, new in changes.items():
            assert old in text
            text = text.replace(old, new)
        for name, ports in self._ports.items():
            for inside, outside in ports.items():
                text = text.replace(f"{name}:{inside}", f"localhost:{outside}")
        for inside, outside in self._ports[self.name].items():
            text = re.sub(rf"(0\.0\.0\.0|127\.0\.0\.1):{inside}", rf"\1:{outside}", text)
        text = text.replace("/etc/memsvc", str(self.etc))
        text = text.replace("/var/lib/memsvc/main", str(self.var))
        (self.etc / "main.yaml").write_text(text)
        assert self.memsvc("config", "check", "--config", str(self.etc / "main.yaml"))[0] == 0

    def sign(self, authority: Path | None = None) -> None:
        """The certificate, by the commands of the page; by the authority of another machine when
        one is given."""
        section = PAGE[
            PAGE.index("    openssl req -x509") : PAGE.index("    chown memsvc: tls.crt")
        ]
        commands = section.replace("node-1", self.name)
        if authority is not None:
            for name in ("ca.crt", "ca.key"):
                (self.etc / "tls" / name).write_bytes((authority / name).read_bytes())
            commands = commands[commands.index("    openssl req -newkey") :]
        done = subprocess.run(
            ["/bin/sh", "-ec", commands], cwd=self.etc / "tls", capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr

    def start(self, *, wait: bool = True) -> None:
        """systemctl start."""
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "memsvc.cli", "serve", "--config", self.etc / "main.yaml"],
                env={**CLEAN, "PYTHONPATH": str(ROOT)},
                cwd=self.var,
                stdout=log,
                stderr=log,
            )
        if wait:
            self.ready()

    def ready(self) -> None:
        until(lambda: self.memsvc("health", *self.tls)[0] == 0, 90, self.log)

    def level(self) -> None:
        """Ready, with lag 0."""

        def is_it() -> bool:
            facts = self.json("health", *self.tls)
            return bool(facts["ready"]) and not facts.get("lag_positions")

        self.ready()
        until(is_it, 60, self.log)

    def stop(self) -> None:
        """systemctl stop."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, self.log()

    def memsvc(self, *words: str, token: str | None = None) -> tuple[int, str, str]:
        """A command on this machine, with the token of ops or another."""
        env = {"MEMSVC_TOKEN": self.token if token is None else token}
        result = CliRunner(env=env).invoke(cli, words, prog_name="memsvc")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.stdout, result.stderr

    def json(self, *words: str, **more: str) -> Any:
        code, out, err = self.memsvc(*words, "--json", **more)
        assert code == 0, out + err + self.log()
        return json.loads(out)

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace")[-5000:] if path.exists() else ""


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[list[Machine]]:
    ports = {name: {port: free_port() for port in PORTS} for name in NAMES}
    made = [Machine(tmp_path, name, ports) for name in NAMES]
    yield made
    for machine in made:
        if machine.process is not None and machine.process.poll() is None:
            machine.process.terminate()
            machine.process.wait(60)


@pytest.mark.soak
def test_page_on_deployment_leads_where_it_says(machines: list[Machine], tmp_path: Path) -> None:
    one, two, three = machines
    say = ("write", "-n", "acme/assistant", "--embedder", "none")
    ask = ("query", "-n", "acme/assistant", "--embedder", "none")

    # Secure it, start it.
    one.take("standalone")
    one.sign()
    tokens = ("--file", str(one.etc / "tokens.yaml"))
    for add in (
        'memsvc token add ops -p "*" -r admin -r read --file',
        "memsvc token add assistant -p acme/assistant -r read -r write -r forget",
    ):
        assert add in PAGE
    ops = one.memsvc("token", "add", "ops", "-p", "*", "-r", "admin", "-r", "read", *tokens)[1]
    rights = ("-r", "read", "-r", "write", "-r", "forget")
    agent = one.memsvc("token", "add", "assistant", "-p", "acme/assistant", *rights, *tokens)[1]
    agent = agent.strip()
    for machine in machines:
        machine.token = ops.strip()
    one.start()
    assert one.memsvc(*say, "the dog is called Rex", *one.tls, token=agent)[0] == 0
    assert one.memsvc(*say, "no token", *one.tls, token="")[0] == 1
    assert one.memsvc(*say, "may not write", *one.tls)[0] == 1
    elsewhere = ("write", "-n", "other/agent", "--embedder", "none", "no", *one.tls)
    assert one.memsvc(*elsewhere, token=agent)[0] == 1
    assert one.memsvc("health", "--address", one.address)[0] == 3  # no TLS
    doctor = one.memsvc(
        "doctor", "-n", "acme/assistant", "--embedder", "none", *one.tls, token=agent
    )
    assert doctor[0] == 0, doctor

    # Back up.
    backup = tmp_path / "mnt/backup"
    done = one.memsvc("backup", "--to", str(backup), *one.tls)
    assert done[0] == 0, done
    assert one.memsvc("verify", str(backup))[0] == 0
    assert one.memsvc(*say, "said after the backup", *one.tls, token=agent)[0] == 0

    # Add replicas: the node that is there keeps its data.
    one.take("primary")
    (one.etc / "replication-token").write_text("5d3c\n")
    for machine in (two, three):
        machine.take("replica")
        machine.sign(one.etc / "tls")
        for name in ("tokens.yaml", "replication-token"):
            (machine.etc / name).write_bytes((one.etc / name).read_bytes())
    one.stop()
    one.start(wait=False)
    two.start(wait=False)
    three.start(wait=False)
    for machine in machines:
        machine.level()
    assert one.memsvc(*say, "said to the group", *one.tls, token=agent)[0] == 0

    # Replace every node.
    for machine in (three, two):
        machine.stop()
        machine.start()
        machine.level()
    done = two.memsvc("promote", *two.tls)
    assert done[0] == 0, done
    one.stop()
    one.start()
    one.level()
    assert two.json("health", *two.tls)["role"] == "PRIMARY"
    assert two.memsvc(*say, "said to the new primary", *two.tls, token=agent)[0] == 0
    one.level()
    found = one.json(*ask, *one.tls, token=agent)["items"]
    assert {item["summary"] for item in found} == {
        "the dog is called Rex",
        "said after the backup",
        "said to the group",
        "said to the new primary",
    }
    for machine in machines:
        machine.stop()

    # Restore what the backup has, and with the log of the old folder what came after.
    for folder, log, expected in (("restored", (), 1), ("whole", ("--log", two.var / "data"), 4)):
        to = str(one.var / folder)
        done = one.memsvc("restore", str(backup), "--to", to, *map(str, log))
        assert done[0] == 0, done
        one.take("standalone", **{"/var/lib/memsvc/main/data": f"/var/lib/memsvc/main/{folder}"})
        one.start()
        found = one.json(*ask, *one.tls, token=agent)["items"]
        assert len(found) == expected and "the dog is called Rex" in {i["summary"] for i in found}
        one.stop()
