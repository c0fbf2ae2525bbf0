"""The Kubernetes manifests are valid, agree with each other, and make a group that can be
updated pod by pod."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from memsvc.cli import cli
from memsvc.client import NewMemory, RoutedClient, Routing, Timeouts, Tls
from memsvc.config import Settings, load
from memsvc.server import HEARTBEAT_MARGIN_S
from memsvc.service.tokens import Right
from memsvc.service.tokens_edit import add_token
from memsvc.v1 import memory_service_pb2 as pb
from tests import certificates
from tests.cli.live import ROOT
from tests.deploy import manifests as m
from tests.scenarios.routing import Callers
from tests.waiting import until

VERSIONS = ("1.32", "1.37")
"""Of Kubernetes; minor fields of the StatefulSet are older than the first."""


@pytest.fixture(scope="module")
def rendered() -> dict[str, list[m.Object]]:
    return {name: m.render(m.KUBERNETES / "overlays" / name) for name in m.OVERLAYS}


def check(objects: list[m.Object]) -> None:
    """Against the schemas of Kubernetes, unknown fields refused."""
    for one in objects:
        for version in VERSIONS:
            kubernetes_validate.validate(one, version, strict=True)


@pytest.mark.parametrize("overlay", m.OVERLAYS)
def test_manifests_are_valid(rendered: dict[str, list[m.Object]], overlay: str) -> None:
    check(rendered[overlay])


def test_job_that_restores_is_valid_and_writes_to_the_disk_of_the_first_node(
    rendered: dict[str, list[m.Object]],
) -> None:
    job = yaml.safe_load((m.KUBERNETES / "restore-job.yaml").read_text())
    check([job])
    pod = job["spec"]["template"]["spec"]
    group = m.of_kind(rendered["replicated"], "StatefulSet")
    (claim,) = group["spec"]["volumeClaimTemplates"]
    disk = f"{claim['metadata']['name']}-{group['metadata']['name']}-0"
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == disk
    assert job["metadata"]["namespace"] == group["metadata"]["namespace"]
    # Or its Services and NetworkPolicy would take it for a node.
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert not group["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_check_of_manifests_finds_a_field_that_does_not_exist(
    rendered: dict[str, list[m.Object]],
) -> None:
    wrong = yaml.safe_load(yaml.safe_dump(m.of_kind(rendered["standalone"], "StatefulSet")))
    wrong["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        check([wrong])


@pytest.mark.parametrize("overlay", m.OVERLAYS)
def test_manifests_with_tls_are_valid_and_probe_by_https(overlay: str, tmp_path: Path) -> None:
    objects = m.render(m.with_tls(overlay, tmp_path))
    check(objects)
    (container,) = m.of_kind(objects, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["scheme"] == "HTTPS"
        assert "grpc" not in container[probe]
    # What it sets is accepted by a node, of whatever role.
    set_by = {one["name"]: one.get("value", "") for one in container["env"]}
    env = {name: value for name, value in set_by.items() if name.startswith("MEMSVC_")}
    settings = settings_of(objects, tmp_path, env)
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    for file in (settings.server.tls.cert_file, settings.server.tls.key_file, set_by["CA_FILE"]):
        assert str(Path(file).parent) in mounts


def settings_of(
    objects: list[m.Object], folder: Path, env: dict[str, str] | None = None
) -> Settings:
    name = next(
        one["configMap"]["name"]
        for one in m.of_kind(objects, "StatefulSet")["spec"]["template"]["spec"]["volumes"]
        if "configMap" in one
    )
    file = folder / "memsvc.yaml"
    file.write_text(m.of_kind(objects, "ConfigMap", name)["data"]["memsvc.yaml"])
    # start.sh tells the role of each node of a group.
    role = {"node.role": "primary"} if "replication:" in file.read_text() else {}
    return load(file, env or {}, role).settings


@pytest.mark.parametrize("overlay", m.OVERLAYS)
def test_objects_of_an_overlay_agree(
    rendered: dict[str, list[m.Object]], overlay: str, tmp_path: Path
) -> None:
    objects = rendered[overlay]
    spec = m.of_kind(objects, "StatefulSet")["spec"]
    template = spec["template"]
    pod = template["spec"]
    (container,) = pod["containers"]
    labels = template["metadata"]["labels"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    for one in objects:
        if one["kind"] == "Service":
            assert one["spec"]["selector"].items() <= labels.items() and one["spec"]["selector"]
            assert all(port["targetPort"] in ports for port in one["spec"]["ports"])
        elif one["kind"] in ("NetworkPolicy", "PodDisruptionBudget"):
            selector = one["spec"].get("podSelector") or one["spec"].get("selector")
            assert selector["matchLabels"].items() <= labels.items() and selector["matchLabels"]
        assert one["metadata"]["namespace"] == "memsvc"
    policy = m.of_kind(objects, "NetworkPolicy")["spec"]
    named = [port["port"] for rule in policy["ingress"] for port in rule["ports"]]
    assert set(named) == set(ports)
    # A label that kustomize adds to every selector would keep all clients out.
    clients = policy["ingress"][0]["from"]
    assert clients == [
        {"namespaceSelector": {}, "podSelector": {"matchLabels": {"memsvc.client": "true"}}}
    ]
    assert spec["serviceName"] == m.of_kind(objects, "Service", "memsvc-nodes")["metadata"]["name"]
    # Kubernetes would set MEMSVC_READ_SERVICE_HOST, which is no setting and refused.
    assert pod["enableServiceLinks"] is False
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 10001
    assert container["securityContext"]["readOnlyRootFilesystem"]
    settings = settings_of(objects, tmp_path)
    paths = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert settings.storage.data_dir.is_relative_to("/var/lib/memsvc")
    assert "/var/lib/memsvc" in paths and "/tmp" in paths and "/etc/memsvc/auth" in paths
    assert settings.auth.mode == "token"
    grace = settings.server.graceful_shutdown_ms / 1000 + HEARTBEAT_MARGIN_S
    assert pod["terminationGracePeriodSeconds"] > grace + 5 + 2 * 20
    assert settings.server.listen == f"0.0.0.0:{ports['grpc']}"
    assert settings.metrics.listen == f"0.0.0.0:{ports['metrics']}"
    secrets = [one["secret"]["secretName"] for one in pod["volumes"] if "secret" in one]
    page = (ROOT / "docs/howto/deployment.md").read_text(encoding="utf-8")
    assert all(f"create secret generic {name}" in page for name in secrets)


def test_group_of_the_overlay_is_the_pods_of_its_statefulset(
    rendered: dict[str, list[m.Object]], tmp_path: Path
) -> None:
    objects = rendered["replicated"]
    spec = m.of_kind(objects, "StatefulSet")["spec"]
    settings = settings_of(objects, tmp_path)
    names = [f"memsvc-{number}.memsvc-nodes" for number in range(spec["replicas"])]
    assert list(settings.replication.nodes) == [f"{name}:8850" for name in names]
    (container,) = spec["template"]["spec"]["containers"]
    env = {one["name"]: one.get("value", "") for one in container["env"]}
    assert env["NODES"].split() == [f"{name}:8848" for name in names]
    # As many may be away as writes can do without.
    budget = m.of_kind(objects, "PodDisruptionBudget")["spec"]["maxUnavailable"]
    assert settings.replication.min_acks == spec["replicas"] - 1 - budget


@pytest.mark.parametrize("overlay", m.OVERLAYS)
def test_pods_start_no_reader_for_each_core_of_their_machine(
    rendered: dict[str, list[m.Object]], overlay: str, tmp_path: Path
) -> None:
    """What a pod requests is not to be seen from within, and these have no limit of CPU."""
    pod = m.of_kind(rendered[overlay], "StatefulSet")["spec"]["template"]["spec"]
    resources = pod["containers"][0]["resources"]
    assert "cpu" not in resources["limits"]
    readers = settings_of(rendered[overlay], tmp_path).server.readers
    assert readers == max(1, int(resources["requests"]["cpu"]) - 1)


def test_requests_of_the_group_are_those_of_the_load_that_they_name(
    rendered: dict[str, list[m.Object]], tmp_path: Path
) -> None:
    text = (m.KUBERNETES / "overlays/replicated/statefulset.yaml").read_text()
    (command,) = re.findall(r"# memsvc (size .*)", text)
    readers = settings_of(rendered["replicated"], tmp_path).server.readers
    assert command.endswith(f" --readers {readers}")
    said = json.loads(CliRunner().invoke(cli, [*command.split(), "--json"]).stdout)
    spec = m.of_kind(rendered["replicated"], "StatefulSet")["spec"]
    requests = spec["template"]["spec"]["containers"][0]["resources"]["requests"]
    (claim,) = spec["volumeClaimTemplates"]
    disk = claim["spec"]["resources"]["requests"]["storage"]
    for given, needed in (
        (requests["memory"], said["memory_total"]),
        (disk, said["disk_total"] + said["snapshots"]),
    ):
        assert given.endswith("Gi")
        assert needed <= int(given.removesuffix("Gi")) << 30 <= 1.2 * needed


@dataclass
class Group:
    """Pods of the overlay, and how its clients call them."""

    pods: list[m.Pod]
    token: str
    tls: Tls | None


@pytest.fixture(params=["plain", "tls"])
def group(
    request: pytest.FixtureRequest, rendered: dict[str, list[m.Object]], tmp_path: Path
) -> Iterator[Group]:
    tokens = tmp_path / "tokens.yaml"
    rights = [Right.READ, Right.WRITE, Right.FORGET, Right.ADMIN]
    token = add_token(tokens, "ops", ["*"], rights)
    auth = {
        "tokens.yaml": tokens.read_text(),
        "ops-token": token + "\n",
        "replication-token": "between us\n",
    }
    secrets, tls, objects = {"auth": auth}, None, rendered["replicated"]
    if request.param == "tls":
        made = certificates.make_authority(tmp_path)
        tls = Tls(ca_file=str(made.ca.cert))
        secrets["tls"] = {
            "tls.crt": made.server.cert.read_text(),
            "tls.key": made.server.key.read_text(),
            "ca.crt": made.ca.cert.read_text(),
        }
        objects = m.render(m.with_tls("replicated", tmp_path))
    ports = m.make_ports(3)
    pods = [m.Pod(objects, number, ports, tmp_path, secrets) for number in range(3)]
    yield Group(pods, token, tls)
    for pod in pods:
        pod.end()


@pytest.mark.soak
def test_rolling_update_of_the_pods_loses_no_write_and_fails_no_read(
    group: Group,
) -> None:
    """Pod by pod from the highest number down, as the controller does, with the hook of the
    manifests; one of them comes back without its disk."""
    pods = group.pods
    for pod in pods:
        pod.start()
    for pod in pods:
        pod.wait_ready()
        assert pod.probe("startupProbe") and pod.probe("livenessProbe")
    routing = Routing(check_interval=0.2, read_your_writes=True)
    timeouts = Timeouts(read=60, write=60)
    addresses = [pod.address for pod in pods]
    vector = [1.0] + [0.0] * 1535
    space = "acme/bot"
    written: set[str] = set()
    with RoutedClient(
        addresses, token=group.token, tls=group.tls, routing=routing, timeouts=timeouts
    ) as client:

        def write(number: int) -> None:
            memory = NewMemory(f"note {number}", vector=vector, dedup_key=f"d{number}")
            written.add(client.write(space, [memory]).results[0].id)

        def read(_: int) -> None:
            assert client.query(space, text="note", top_k=1).items

        write(-1)
        with Callers(write) as writers, Callers(read) as readers:
            writers.more()
            for pod in reversed(pods):
                pod.stop()
                if pod is pods[1]:
                    shutil.rmtree(pod.data)
                    pod.data.mkdir()
                pod.start()
                pod.wait_ready()
                writers.more()
                readers.more()
        # It was handed over once: by the last of them, to the first that was replaced.
        assert client.health().role == pb.ROLE_PRIMARY
        told = [pod.told.startswith("primary, of epoch") for pod in pods]
        assert told == [True, False, False], [pod.told for pod in pods]

        def everything() -> bool:
            return written <= {hit.id for hit in client.browse(space, page_size=200)}

        until(everything, 30, "every write to be found")
