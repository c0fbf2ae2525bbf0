"""Kubernetes manifests as kustomize renders them, and their pods as processes of this machine."""

from __future__ import annotations

import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.cli.live import CLEAN, ROOT
from tests.ports import free_port
from tests.waiting import until

KUBERNETES = ROOT / "deploy/kubernetes"
OVERLAYS = sorted(path.name for path in (KUBERNETES / "overlays").iterdir())
PORTS = (8848, 8849, 8850, 9464)

Object = dict[str, Any]


def render(folder: Path) -> list[Object]:
    """What ``kubectl kustomize`` makes of a folder."""
    beside = Path(sys.executable).with_name("kubectl")
    kubectl = str(beside) if beside.exists() else shutil.which("kubectl")
    assert kubectl, "kubectl is in the extra dev: make venv"
    done = subprocess.run([kubectl, "kustomize", str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def with_tls(overlay: str, folder: Path) -> Path:
    """An overlay to which the component is added, as its comment says; kustomize takes relative
    paths only."""
    copied = folder / "kubernetes"
    shutil.copytree(KUBERNETES, copied)
    kustomization = copied / "overlays" / overlay / "kustomization.yaml"
    text = kustomization.read_text()
    assert "#components: [../../components/tls]" in text
    kustomization.write_text(text.replace("#components:", "components:"))
    return kustomization.parent


def of_kind(objects: list[Object], kind: str, name: str = "") -> Object:
    """The only object of a kind (and name)."""
    (found,) = [
        one
        for one in objects
        if one["kind"] == kind and (not name or one["metadata"]["name"] == name)
    ]
    return found


class Pod:
    """One pod of a StatefulSet as a process: its command, environment and mounted files, with
    names of hosts, ports and folders replaced by those of this machine. ``ports`` are those of
    each pod by its number, ``secrets`` what is mounted, by the name of the volume."""

    def __init__(
        self,
        objects: list[Object],
        number: int,
        ports: Mapping[int, Mapping[int, int]],
        folder: Path,
        secrets: Mapping[str, Mapping[str, str]],
    ) -> None:
        spec = of_kind(objects, "StatefulSet")["spec"]["template"]["spec"]
        (self.container,) = spec["containers"]
        self.name = f"memsvc-{number}"
        self.folder = folder / self.name
        self.ports = ports[number]
        self._all = ports
        self.address = f"127.0.0.1:{self.ports[8848]}"
        files = self.folder / "etc/memsvc"
        files.mkdir(parents=True)
        self.data = self.folder / "var/lib/memsvc"
        self.data.mkdir(parents=True)
        (self.folder / "tmp").mkdir()
        config = next(v["configMap"]["name"] for v in spec["volumes"] if v["name"] == "config")
        texts = of_kind(objects, "ConfigMap", config)["data"]
        mounts = self.container["volumeMounts"]
        for mount in mounts:
            if mount["name"] == "config":
                assert mount["mountPath"] == f"/etc/memsvc/{mount['subPath']}"
                (files / mount["subPath"]).write_text(self.here(texts[mount["subPath"]]))
        for mount in mounts:
            if mount["name"] in secrets:
                place = files / Path(mount["mountPath"]).relative_to("/etc/memsvc")
                place.mkdir()
                for name, text in secrets[mount["name"]].items():
                    (place / name).write_text(text)
                    (place / name).chmod(0o440)
        self.process: subprocess.Popen[bytes] | None = None
        self.told = ""
        """What the hook before the end said."""

    def here(self, text: str) -> str:
        """A text of the manifests with what it names on this machine."""
        for number, ports in self._all.items():
            for inside, outside in ports.items():
                text = re.sub(
                    rf"memsvc-{number}\.memsvc-nodes:{inside}", f"127.0.0.1:{outside}", text
                )
        for inside, outside in self.ports.items():
            text = text.replace(f"0.0.0.0:{inside}", f"127.0.0.1:{outside}")
            text = re.sub(rf'"\$POD_NAME\S*:{inside}"', f"127.0.0.1:{outside}", text)
        text = text.replace('"$group-0.$group-nodes:8850"', f"127.0.0.1:{self._all[0][8850]}")
        # Addresses lost the names by which the pods know their own.
        text = text.replace('"$POD_NAME".*)', f"{self.address})")
        text = text.replace("/etc/memsvc", f"{self.folder}/etc/memsvc")
        text = text.replace("/var/lib/memsvc", str(self.data))
        # Nothing stands between callers and nodes here.
        return re.sub(r"^sleep 5$", "", text, flags=re.MULTILINE)

    def env(self) -> dict[str, str]:
        """The environment of the container."""
        bin_ = self.folder / "bin"
        bin_.mkdir(exist_ok=True)
        program = bin_ / "memsvc"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m memsvc.cli "$@"\n')
        program.chmod(0o755)
        given = {
            one["name"]: self.here(one["value"]) if "value" in one else self.field(one)
            for one in self.container.get("env", [])
        }
        fixed = {
            "PYTHONPATH": str(ROOT),
            "PATH": f"{bin_}:{os.environ['PATH']}",
            "HOME": f"{self.folder}/tmp",
            "TMPDIR": f"{self.folder}/tmp",
            "MEMSVC_ADDRESS": self.address,
            # Machines of tests do other things beside.
            "MEMSVC_QUERY__TIMEOUT_MS": "20000",
            # They have fewer cores than a pod requests.
            "MEMSVC_SERVER__READERS": "1",
        }
        return {**CLEAN, **fixed, **given}

    def field(self, one: Object) -> str:
        path = one["valueFrom"]["fieldRef"]["fieldPath"]
        return {"metadata.name": self.name, "metadata.namespace": "memsvc"}[path]

    def words(self, words: list[str]) -> list[str]:
        return [self.here(word) for word in words]

    def start(self) -> None:
        command = self.container.get("command", ["memsvc"]) + self.container["args"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.words(command),
                env=self.env(),
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def probe(self, which: str = "readinessProbe") -> bool:
        """One of its probes, as Kubernetes makes it."""
        probe = self.container[which].get("grpc")
        if probe is None:
            return self._probe_https(self.container[which]["httpGet"])
        with grpc.insecure_channel(f"127.0.0.1:{self.ports[probe['port']]}") as channel:
            request = health_pb2.HealthCheckRequest(service=probe.get("service", ""))
            try:
                answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=2)
            except grpc.RpcError:
                return False
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def _probe_https(self, get: Object) -> bool:
        names = {port["name"]: port["containerPort"] for port in self.container["ports"]}
        url = f"https://127.0.0.1:{self.ports[names[get['port']]]}{get['path']}"
        # Kubernetes checks no certificate either.
        context = ssl._create_unverified_context()
        try:
            with urllib.request.urlopen(url, timeout=2, context=context) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def wait_ready(self) -> None:
        until(self.probe, 90, self.log)

    def stop(self) -> None:
        """As Kubernetes ends a pod: preStop, SIGTERM, and it ends in time."""
        assert self.process is not None
        hook = self.words(self.container["lifecycle"]["preStop"]["exec"]["command"])
        done = subprocess.run(hook, env=self.env(), cwd=self.folder, capture_output=True, text=True)
        self.told = done.stdout + done.stderr
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, self.log()

    def end(self) -> None:
        """Whatever happened."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-6000:]


def make_ports(count: int) -> dict[int, dict[int, int]]:
    """Free ports for each port of some pods."""
    return {number: {port: free_port() for port in PORTS} for number in range(count)}
