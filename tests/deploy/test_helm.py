"""Test that the chart's objects fit Kubernetes' schemas, and their commands the command line and the images."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from capacity.providers.base import WorkerTag
from capacity.providers.config import KubernetesConfig
from capacity.providers.kubernetes.objects import job_of
from coordinator.config.checks import HttpCheck
from coordinator.config.config import CoordinatorConfig
from coordinator.gateway.config import GatewayConfig
from coordinator.scorer.config import ScorerConfig
from learner.config import LearnerConfig
from peer.config import PeerConfig
from rollcast.wire.identity.tls import RunCA, TlsCredentials, new_tls_key
from rollcast.wire.ids import RunId
from tests.capacity.providers.pool_machines import machines
from tests.deploy.helm_rendering import Chart

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "rollcast"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

#: The values with which the run is in PostgreSQL and has a standby.
SHARED = {"store__url": "postgresql://rollcast@db.example.org/rollcast", "learner__publicKey": "ab" * 32}


def objects(**values: Any) -> dict[tuple[str, str], dict[str, Any]]:
    return {(one["kind"], one["metadata"]["name"]): one for one in Chart(CHART, **values).documents()}


def test_the_chart_makes_only_the_central_side_by_default() -> None:
    assert sorted(objects()) == [
        ("ConfigMap", "test-rollcast"),
        ("Service", "test-rollcast"),
        ("StatefulSet", "test-rollcast"),
    ]
    everything = objects(peers__replicas=3, prometheus__enabled=True)
    assert ("StatefulSet", "test-rollcast-peer") in everything
    assert ("ServiceMonitor", "test-rollcast") in everything


def test_configurations_are_such_as_the_processes_read() -> None:
    files = objects()["ConfigMap", "test-rollcast"]["data"]
    coordinator = CoordinatorConfig.model_validate(tomllib.loads(files["coordinator.toml"]))
    assert (coordinator.run.staleness_limit, coordinator.serve.advertise_host) == (4, "rollcast.example.org")
    LearnerConfig.model_validate(tomllib.loads(files["learner.toml"]))
    origin = PeerConfig.model_validate(tomllib.loads(files["origin.toml"]))
    assert origin.link.advertise == "rollcast.example.org:7410"
    PeerConfig.model_validate(tomllib.loads(files["peer.toml"]))


def test_gateways_find_the_core_and_peers_find_the_gateways() -> None:
    made = objects(gateways__replicas=2, networkPolicies__enabled=True)
    files = made["ConfigMap", "test-rollcast"]["data"]
    coordinator = CoordinatorConfig.model_validate(tomllib.loads(files["coordinator.toml"])).gateways
    assert (coordinator.listen, coordinator.addresses) == ("0.0.0.0:7403", ["gateways.rollcast.example.org:7405"])
    gateway = GatewayConfig.model_validate(tomllib.loads(files["gateway.toml"]))
    (link,) = made["Service", "test-rollcast-core"]["spec"]["ports"]
    assert gateway.core == [f"test-rollcast-core:{link['port']}"]
    core = containers_of(made, "test-rollcast")["coordinator"]["ports"]
    assert {"name": link["targetPort"], "containerPort": link["port"]} in core
    (outside,) = made["Service", "test-rollcast-gateways"]["spec"]["ports"]
    (own,) = containers_of(made, "test-rollcast-gateway")["gateway"]["ports"]
    assert outside["port"] == own["containerPort"] == gateway.serve.grpc_port
    pods = made["StatefulSet", "test-rollcast-gateway"]["spec"]["template"]["metadata"]["labels"]
    assert made["Service", "test-rollcast-gateways"]["spec"]["selector"].items() <= pods.items()
    rules = made["NetworkPolicy", "test-rollcast"]["spec"]["ingress"]
    (admitted,) = (rule["from"] for rule in rules if rule["ports"] == [{"port": link["port"]}])
    assert admitted[0]["podSelector"]["matchLabels"].items() <= pods.items()


@pytest.mark.parametrize("shared", [False, True])
def test_coordinators_and_scorers_find_each_other_and_have_the_same_secret(shared: bool) -> None:
    advised = re.search(r"check = (\{ kind = \"http\", .+ \})", (CHART / "values.yaml").read_text())
    assert advised is not None
    check = advised[1].replace("RELEASE", "test")
    task = f'[task]\nkind = "jsonl"\npath = "/data/problems.jsonl"\ncheck = {check}\n'
    values: dict[str, Any] = {"coordinator__configuration": task, **(SHARED if shared else {})}
    made = objects(scorers__replicas=3, networkPolicies__enabled=True, dataClaim="models", **values)
    files = made["ConfigMap", "test-rollcast"]["data"]
    asked = getattr(CoordinatorConfig.model_validate(tomllib.loads(files["coordinator.toml"])).task, "check", None)
    scorer = ScorerConfig.model_validate(tomllib.loads(files["scorer.toml"]))
    assert isinstance(asked, HttpCheck)
    (port,) = made["Service", "test-rollcast-scorers"]["spec"]["ports"]
    assert asked.url == f"http://test-rollcast-scorers:{port['port']}"
    deployment = made["Deployment", "test-rollcast-scorer"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["ports"] == [{"name": port["targetPort"], "containerPort": scorer.serve.port}]
    assert asked.secret_file == scorer.serve.secret_file == Path("/scorer/scorer.secret")
    coordinators = "test-rollcast-coordinator" if shared else "test-rollcast"
    for workload, name in ((deployment, "scorer"), (made["StatefulSet", coordinators], "coordinator")):
        pod = workload["spec"]["template"]["spec"]
        (holder,) = (one for one in pod["containers"] if one["name"] == name)
        mounts = {mount["name"]: mount["mountPath"] for mount in holder["volumeMounts"]}
        assert (mounts["scorer"], mounts["data"]) == ("/scorer", "/data")
        (volume,) = (one for one in pod["volumes"] if one["name"] == "scorer")
        assert volume["secret"]["secretName"] == "rollcast-scorer"
    policy = made["NetworkPolicy", "test-rollcast-scorer"]["spec"]
    for selector in (
        policy["podSelector"]["matchLabels"],
        made["Service", "test-rollcast-scorers"]["spec"]["selector"],
    ):
        assert selector.items() <= labels_of(deployment).items()
    (rule,) = policy["ingress"]
    asking = labels_of(made["StatefulSet", coordinators])
    assert any(one["podSelector"]["matchLabels"].items() <= asking.items() for one in rule["from"])
    assert rule["ports"] == [{"port": port["port"]}]


def test_no_container_has_rights_that_it_does_not_need() -> None:
    made = objects(peers__replicas=2, gateways__replicas=1, scorers__replicas=1)
    workloads = [one for (kind, _), one in made.items() if kind in ("StatefulSet", "Deployment")]
    containers = [container for one in workloads for container in one["spec"]["template"]["spec"]["containers"]]
    assert {container["name"] for container in containers} == {
        "coordinator",
        "gateway",
        "learner",
        "origin",
        "peer",
        "scorer",
    }
    for container in containers:
        rights = container["securityContext"]
        assert rights["readOnlyRootFilesystem"] is rights["runAsNonRoot"] is True
        assert rights["allowPrivilegeEscalation"] is False
        assert rights["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]


def test_only_the_coordinator_of_a_chart_that_starts_workers_has_an_account() -> None:
    pod = objects()["StatefulSet", "test-rollcast"]["spec"]["template"]["spec"]
    assert "serviceAccountName" not in pod
    made = objects(workers__enabled=True)
    pod = made["StatefulSet", "test-rollcast"]["spec"]["template"]["spec"]
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == ("test-rollcast", False)
    assert ("ServiceAccount", "test-rollcast") in made
    reading = [
        container["name"]
        for container in pod["containers"]
        if any(mount["name"] == "api" for mount in container["volumeMounts"])
    ]
    assert reading == ["coordinator"]
    assert "api" in [volume["name"] for volume in pod["volumes"]]
    binding = made["RoleBinding", "test-rollcast-workers"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "test-rollcast"}]


def test_network_policies_select_the_charts_pods_and_started_workers() -> None:
    made = objects(networkPolicies__enabled=True, peers__replicas=1)
    policies = {name: one["spec"] for (kind, name), one in made.items() if kind == "NetworkPolicy"}
    run, peers = (policies[name]["podSelector"]["matchLabels"] for name in ("test-rollcast", "test-rollcast-peers"))
    sets = {name: one for (kind, name), one in made.items() if kind == "StatefulSet"}
    assert run.items() <= sets["test-rollcast"]["spec"]["template"]["metadata"]["labels"].items()
    assert peers.items() <= sets["test-rollcast-peer"]["spec"]["template"]["metadata"]["labels"].items()
    (machine,) = machines({"worker_id": "w", "start": "kubernetes"})
    job = job_of(WorkerTag("run", "w", 1), machine.row, KubernetesConfig(image="peer:1"))
    assert peers.items() <= job["spec"]["template"]["metadata"]["labels"].items()
    opened = {port["port"] for rule in policies["test-rollcast"]["ingress"] for port in rule["ports"]}
    assert opened == {port["port"] for port in made["Service", "test-rollcast"]["spec"]["ports"]}


def labels_of(workload: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = workload["spec"]["template"]["metadata"]["labels"]
    return found


def test_coordinators_with_a_shared_store_are_pods_of_their_own_on_nodes_of_their_own() -> None:
    made = objects(workers__enabled=True, **SHARED)
    run, coordinators = (made["StatefulSet", name]["spec"] for name in ("test-rollcast", "test-rollcast-coordinator"))
    assert (coordinators["replicas"], run["replicas"]) == (2, 1)
    # Nothing may wait until a standby is ready.
    assert (coordinators["podManagementPolicy"], coordinators["updateStrategy"]) == ("Parallel", {"type": "OnDelete"})
    pod = coordinators["template"]["spec"]
    (apart,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    assert apart["labelSelector"] == coordinators["selector"]
    assert pod["serviceAccountName"] == "test-rollcast"
    assert "serviceAccountName" not in run["template"]["spec"]
    assert [one["name"] for one in pod["containers"]] == ["coordinator"]
    assert [one["name"] for one in run["template"]["spec"]["containers"]] == ["origin", "learner"]


def test_services_lead_to_the_coordinator_that_leads_and_to_the_origin() -> None:
    made = objects(networkPolicies__enabled=True, **SHARED)
    pods = {name: labels_of(one) for (kind, name), one in made.items() if kind == "StatefulSet"}
    for service, workload in (
        ("test-rollcast", "test-rollcast-coordinator"),
        ("test-rollcast-origin", "test-rollcast"),
    ):
        spec = made["Service", service]["spec"]
        selected = [name for name, labels in pods.items() if spec["selector"].items() <= labels.items()]
        assert selected == [workload]
        assert "publishNotReadyAddresses" not in spec
        offered = {
            one["name"]: one["containerPort"]
            for container in containers_of(made, workload).values()
            for one in container.get("ports", ())
        }
        assert {one["targetPort"]: one["port"] for one in spec["ports"]} == offered
        (policy,) = [
            one["spec"]
            for (kind, _), one in made.items()
            if kind == "NetworkPolicy" and one["spec"]["podSelector"]["matchLabels"].items() <= pods[workload].items()
        ]
        assert {port["port"] for rule in policy["ingress"] for port in rule["ports"]} == set(offered.values())


def test_gateways_reach_the_coordinator_that_leads() -> None:
    made = objects(gateways__replicas=2, networkPolicies__enabled=True, **SHARED)
    spec = made["Service", "test-rollcast-core"]["spec"]
    assert spec["selector"].items() <= labels_of(made["StatefulSet", "test-rollcast-coordinator"]).items()
    ports = containers_of(made, "test-rollcast-coordinator")["coordinator"]["ports"]
    assert {"name": "core", "containerPort": spec["ports"][0]["port"]} in ports
    *_, rule = made["NetworkPolicy", "test-rollcast-coordinator"]["spec"]["ingress"]
    (source,) = rule["from"]
    assert source["podSelector"]["matchLabels"] == labels_of(made["StatefulSet", "test-rollcast-gateway"])


def test_evictions_leave_the_leader_and_may_take_a_standby() -> None:
    made = objects(**SHARED)
    budget = made["PodDisruptionBudget", "test-rollcast-coordinator"]["spec"]
    assert budget["selector"] == made["StatefulSet", "test-rollcast-coordinator"]["spec"]["selector"]
    assert (budget["minAvailable"], budget["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")
    kinds = [kind for kind, _ in objects(disruptionBudget__enabled=False, **SHARED)]
    assert "PodDisruptionBudget" not in kinds


def test_secrets_and_invites_of_a_shared_store_are_where_the_processes_look_for_them() -> None:
    made = objects(origin__advertiseHost="chunks.example.org", **SHARED)
    files = made["ConfigMap", "test-rollcast"]["data"]
    coordinator = CoordinatorConfig.model_validate(tomllib.loads(files["coordinator.toml"]))
    assert (coordinator.store.url, coordinator.learner_public_key) == (
        SHARED["store__url"],
        SHARED["learner__publicKey"],
    )
    assert "password" not in files["coordinator.toml"]
    learner = LearnerConfig.model_validate(tomllib.loads(files["learner.toml"]))
    origin = PeerConfig.model_validate(tomllib.loads(files["origin.toml"]))
    assert origin.link.advertise == "chunks.example.org:7410"
    secrets = mounted_secrets(made, "test-rollcast")
    assert secrets[str(learner.invite_file)] == secrets[str(origin.invite_file)] == "rollcast-members"
    pod = made["StatefulSet", "test-rollcast"]["spec"]["template"]["spec"]
    (first,) = pod["initContainers"]
    assert first["command"] == ["install", "-m", "0600", "/secrets/learner.key", str(learner.identity_file)]
    assert first["securityContext"]["readOnlyRootFilesystem"] is True
    for name, invite in (("origin", origin.invite_file), ("learner", learner.invite_file)):
        assert f"-s {invite} ]" in containers_of(made, "test-rollcast")[name]["args"][0]
    keys = mounted_secrets(made, "test-rollcast-coordinator")
    assert keys[str(Path("/state/run/secrets") / coordinator.store.key_file)] == "rollcast-store"
    (password,) = containers_of(made, "test-rollcast-coordinator")["coordinator"]["env"]
    assert password["valueFrom"]["secretKeyRef"]["name"] == "rollcast-store"


def test_notes_name_the_secret_for_which_the_pod_of_the_learner_waits() -> None:
    invites = "--from-file=invite-learner --from-file=invite-origin"
    assert f"create secret generic rollcast-members {invites}" in Chart(CHART, **SHARED).notes()
    assert "rollcast-members" not in Chart(CHART).notes()


class MountedSecrets(dict[str, str]):
    """The Secret that holds each file, by the file's path."""

    def __missing__(self, path: str) -> str:
        return self[str(Path(path).parent)]


def mounted_secrets(made: dict[tuple[str, str], dict[str, Any]], name: str) -> MountedSecrets:
    volumes = {one["name"]: one for one in made["StatefulSet", name]["spec"]["template"]["spec"]["volumes"]}
    return MountedSecrets(
        {
            mount["mountPath"]: volumes[mount["name"]]["secret"]["secretName"]
            for container in containers_of(made, name).values()
            for mount in container["volumeMounts"]
            if "secret" in volumes.get(mount["name"], {})
        }
    )


async def test_a_standby_passes_the_probe_of_life_and_a_leader_only_while_it_answers(tmp_path: Path) -> None:
    """The probe's own command runs here, with another folder and port."""
    container = containers_of(objects(**SHARED), "test-rollcast-coordinator")["coordinator"]
    assert container["readinessProbe"]["httpGet"] == {"path": "/ready", "port": "https", "scheme": "HTTPS"}
    assert not any(one in container for one in ("startupProbe", "lifecycle"))  # a standby may wait for months
    authority, key = RunCA.create(tmp_path, RunId("run-1")), new_tls_key()
    certificate = authority.issue_coordinator(key.csr_pem(), [])
    tls = TlsCredentials(authority.certificate_pem, certificate, key.private_pem).ssl_server_context(ask_client=False)
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    command = [
        re.sub("127.0.0.1:7401", f"127.0.0.1:{port}", word).replace("/state/run", str(tmp_path))
        for word in container["livenessProbe"]["exec"]["command"]
    ]
    assert (await status(command), asked) == (0, [])
    (tmp_path / "endpoints.json").write_text("{}")
    assert await status(command) == 0
    assert asked[0].startswith(b"GET /health ")
    server.close()
    await server.wait_closed()
    assert await status(command) != 0


async def status(command: list[str]) -> int:
    """Run a command with this interpreter as its python; return its exit status."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *command, env={**os.environ, "PATH": path}, stdout=quiet, stderr=quiet
    )
    async with asyncio.timeout(60):
        return await process.wait()


def test_ports_of_the_service_are_those_of_containers() -> None:
    made = objects()
    containers = made["StatefulSet", "test-rollcast"]["spec"]["template"]["spec"]["containers"]
    named = {port["name"]: port["containerPort"] for container in containers for port in container.get("ports", ())}
    wanted = {port["targetPort"]: port["port"] for port in made["Service", "test-rollcast"]["spec"]["ports"]}
    assert wanted == named == {"grpc": 7400, "https": 7401, "observe": 7402, "chunks": 7410}


def containers_of(made: dict[tuple[str, str], dict[str, Any]], name: str) -> dict[str, dict[str, Any]]:
    found = made["StatefulSet", name]["spec"]["template"]["spec"]["containers"]
    return {container["name"]: container for container in found}


def test_devices_are_asked_for_with_images_that_can_use_them_and_never_without() -> None:
    made = objects(peers__replicas=1)
    parts = {**containers_of(made, "test-rollcast"), **containers_of(made, "test-rollcast-peer")}
    for role, container in parts.items():
        assert list(container["resources"]["limits"]) == ["memory"]
        assert container["image"] == f"rollcast-{'peer' if role == 'origin' else role}:{VERSION}"
    gpus = {"learner__accelerator": "cuda13", "peers__accelerator": "cuda12", "images__registry": "example.org/me/"}
    made = objects(peers__replicas=1, learner__accelerators=8, **gpus)
    learner = containers_of(made, "test-rollcast")["learner"]
    peer = containers_of(made, "test-rollcast-peer")["peer"]
    assert learner["image"] == f"example.org/me/rollcast-learner:{VERSION}-cuda13"
    assert learner["resources"]["limits"]["nvidia.com/gpu"] == 8
    assert peer["image"] == f"example.org/me/rollcast-peer:{VERSION}-cuda12"
    assert peer["resources"]["limits"]["nvidia.com/gpu"] == 1


def test_task_model_and_learner_are_those_of_the_values() -> None:
    task = '[task]\nkind = "jsonl"\npath = "/data/problems.jsonl"\n[tokenizer]\nfolder = "/data/model"\n'
    values = {
        "coordinator__configuration": f"held_out_problems = 64\n[run]\nsteps = 9\n{task}",
        "learner__configuration": 'init_from = "/data/model"\n[optimiser]\nlearning_rate = 1e-6\n',
        "peers__configuration": '[engine]\nkind = "vllm"\n',
    }
    made = objects(dataClaim="models", **values)
    files = made["ConfigMap", "test-rollcast"]["data"]
    coordinator = CoordinatorConfig.model_validate(tomllib.loads(files["coordinator.toml"]))
    assert str(getattr(coordinator.task, "path", "")) == "/data/problems.jsonl"
    assert (coordinator.run.steps, coordinator.held_out_problems) == (9, 64)
    learner = LearnerConfig.model_validate(tomllib.loads(files["learner.toml"]))
    assert (str(learner.init_from), learner.optimiser.learning_rate) == ("/data/model", 1e-6)
    assert PeerConfig.model_validate(tomllib.loads(files["peer.toml"])).engine.kind == "vllm"
    mounts = containers_of(made, "test-rollcast")["coordinator"]["volumeMounts"]
    assert {"name": "data", "mountPath": "/data", "readOnly": True} in mounts


def test_an_unknown_value_is_an_error() -> None:
    with pytest.raises(KeyError):
        Chart(CHART)._value(".Values.run.nothing")


def test_kubernetes_schemas_accept_every_object() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="objects were not validated: no kubernetes-validate")
    everything = {
        "peers__replicas": 3,
        "workers__enabled": True,
        "networkPolicies__enabled": True,
        "dataClaim": "data",
        "gateways__replicas": 2,
        "scorers__replicas": 2,
    }
    for values in (everything, {**everything, **SHARED}):
        for one in objects(**values).values():
            validate.validate(one, "1.30", strict=True)
