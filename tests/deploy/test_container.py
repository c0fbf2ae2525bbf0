"""The image is what its file says, and the nodes of the compose file work together."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from memsvc.config import Settings, load
from memsvc.server import HEARTBEAT_MARGIN_S
from memsvc.service.tokens import TokenStore
from tests.cli.live import CLEAN, ROOT
from tests.deploy import containerfile
from tests.ports import free_port
from tests.waiting import until

CONTAINER = ROOT / "deploy/container"


def files_of(root: Path, *besides: Path) -> dict[Path, tuple[int, int]]:
    """Size and time of every file below, but for some folders."""
    found = {}
    for path in root.rglob("*"):
        if not any(path.is_relative_to(other) for other in besides) and path.is_file():
            facts = path.lstat()
            found[path] = (facts.st_size, facts.st_mtime_ns)
    return found


@pytest.mark.soak
def test_steps_of_the_image_run_as_plain_commands_and_leave_a_node_that_works(
    tmp_path: Path,
) -> None:
    """Everything but what a container engine adds: other file systems, users and networks. It
    installs every dependency anew, hence a long test."""
    owner = {"UID": str(os.getuid()), "GID": str(os.getgid())}
    image = containerfile.build(CONTAINER / "Containerfile", ROOT, tmp_path, owner)
    assert image.facts["USER"] == f"{os.getuid()}:{os.getgid()}"  # 10001 where none is given
    data = Path(image.facts["VOLUME"])
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    shipped = files_of(image.root)
    address = f"127.0.0.1:{free_port()}"
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    env = {**image.env, "HOME": str(scratch), "TMPDIR": str(scratch), "MEMSVC_ADDRESS": address}
    here = {"env": env, "cwd": data}
    settings = [
        *("--set", "index.dimension=16", "--listen", address),
        *("--http-listen", f"127.0.0.1:{free_port()}"),
    ]
    health = image.words("HEALTHCHECK")
    command = [*image.words("ENTRYPOINT"), *image.words("CMD"), *settings]
    with (tmp_path / "log").open("wb") as log:
        node = subprocess.Popen(command, stdout=log, stderr=log, **here)  # type: ignore[call-overload]
    try:

        def healthy() -> bool:
            assert node.poll() is None, (tmp_path / "log").read_text()
            return subprocess.run(health, capture_output=True, **here).returncode == 0  # type: ignore[call-overload]

        until(healthy, 60, (tmp_path / "log").read_text)
        word = ["memsvc", "write", "-n", "acme/bot", "the dog is called Rex"]
        subprocess.run(word, check=True, **here)  # type: ignore[call-overload]
        node.send_signal(signal.Signals[image.facts["STOPSIGNAL"]])
        assert node.wait(60) == 0
        assert subprocess.run(health, capture_output=True, **here).returncode != 0  # type: ignore[call-overload]
    finally:
        node.kill()
    # The root file system may be read-only.
    assert files_of(image.root, data) == {
        path: facts for path, facts in shipped.items() if not path.is_relative_to(data)
    }
    assert (data / "memsvc-data" / "store").is_dir()


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((CONTAINER / "compose.yaml").read_text())
    return read


NODES = ("node-1", "node-2", "node-3")


def test_nodes_of_the_compose_file_are_confined_and_have_what_they_name(
    compose: dict[str, Any],
) -> None:
    used = set()
    for name, service in compose["services"].items():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (CONTAINER / source).exists(), source
            else:
                used.add(source)
        if name in NODES:
            assert service["read_only"] and service["cap_drop"] == ["ALL"]
            settings = node_settings(service)
            # All of them see all cores of the one machine.
            assert settings.server.readers == 1
            grace = settings.server.graceful_shutdown_ms / 1000 + HEARTBEAT_MARGIN_S
            assert float(service["stop_grace_period"].removesuffix("s")) > grace
            # Nothing is reachable from other machines: between containers nothing is encrypted.
            assert all(port.startswith("127.0.0.1:") for port in service["ports"])
            targets = [volume.split(":")[1] for volume in service["volumes"]]
            assert str(settings.storage.data_dir.parent) in targets
        if "build" in service:
            context = CONTAINER / service["build"]["context"]
            assert (context / service["build"]["dockerfile"]).is_file()
    assert used == set(compose["volumes"])
    scraped = yaml.safe_load((CONTAINER / "prometheus.yml").read_text())["scrape_configs"]
    assert scraped[0]["static_configs"][0]["targets"] == [f"{name}:9464" for name in NODES]


def node_settings(service: dict[str, Any]) -> Settings:
    """What a node of the compose file runs with."""
    return load(CONTAINER / "memsvc.yaml", service["environment"], {}).settings


def test_nodes_of_the_compose_file_are_one_group(compose: dict[str, Any]) -> None:
    found = {name: node_settings(compose["services"][name]) for name in NODES}
    assert [found[name].node.role for name in NODES] == ["primary", "replica", "replica"]
    for name, settings in found.items():
        assert settings.replication.advertise == f"{name}:8848"
        assert compose["services"][name]["hostname"] == name
        assert f"{name}:8850" in settings.replication.nodes
        assert settings.replication.primary == ("" if name == "node-1" else "node-1:8850")
    assert len(found["node-1"].replication.nodes) == len(NODES)


def test_first_secrets_are_made_once_and_are_for_their_user_alone(tmp_path: Path) -> None:
    program = tmp_path / "bin/memsvc"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m memsvc.cli "$@"\n')
    program.chmod(0o755)
    folder = tmp_path / "auth"
    folder.mkdir()
    env = {**CLEAN, "PYTHONPATH": str(ROOT), "PATH": f"{program.parent}:{os.environ['PATH']}"}
    script = ["/bin/sh", str(CONTAINER / "first-secrets.sh"), str(folder)]
    subprocess.run(script, env=env, check=True, capture_output=True)
    made = {path.name: path.read_text() for path in folder.iterdir() if path.name[0] != "."}
    assert set(made) == {"replication-token", "tokens.yaml", "ops-token"}
    assert len(made["replication-token"]) == 64
    found = TokenStore(folder / "tokens.yaml").authenticate(made["ops-token"].strip(), 0)
    assert found is not None and found.name == "ops"
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    subprocess.run(script, env=env, check=True, capture_output=True)
    assert {name: (folder / name).read_text() for name in made} == made
