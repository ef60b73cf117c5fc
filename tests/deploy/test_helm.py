"""Test that the chart's objects fit Kubernetes' schemas, and their commands the command line and the images."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from capacity.providers.base import WorkerTag
from capacity.providers.config import KubernetesConfig
from capacity.providers.kubernetes.objects import job_of
from coordinator.config.config import CoordinatorConfig
from coordinator.gateway.config import GatewayConfig
from learner.config import LearnerConfig
from peer.config import PeerConfig
from tests.capacity.providers.pool_machines import machines
from tests.deploy.helm_rendering import Chart

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "rollcast"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


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


def test_no_container_has_rights_that_it_does_not_need() -> None:
    made = objects(peers__replicas=2, gateways__replicas=1)
    sets = [one for (kind, _), one in made.items() if kind == "StatefulSet"]
    containers = [container for one in sets for container in one["spec"]["template"]["spec"]["containers"]]
    assert [container["name"] for container in containers] == ["gateway", "peer", "coordinator", "origin", "learner"]
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
    for (kind, _), one in objects(peers__replicas=3, gateways__replicas=2, prometheus__enabled=True).items():
        if kind != "ServiceMonitor":  # a resource of the Prometheus operator, not of Kubernetes
            validate.validate(one, "1.30", strict=True)
