"""Write Kubernetes' objects: a StatefulSet for each row of the pool, as the Helm chart of deploy/ writes its peers.

Nodes are chosen by the label ``rollcast/hardware``, which the cluster's operator sets to the pool's ``hardware``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tomli_w

from capacity.emit.chosen import ChosenRow, Files, peer_settings
from capacity.emit.yaml import yaml_of

HARDWARE_LABEL = "rollcast/hardware"
INVITE_SECRET = "rollcast-invite"
PORT = 7410
_NAME = "rollcast-workers"
_STORAGE = "50Gi"
_MEMORY_PER_ACCELERATOR_GIB = 32
_HARDENING = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "runAsUser": 10001,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


def files_of(rows: Sequence[ChosenRow], image: str) -> Files:
    """Return one file of objects. The invite is the key ``invite`` of the Secret INVITE_SECRET, as with the chart.

    Args:
        image: of the peer.
    """
    documents = [_configuration(rows), *(_stateful_set(one, image) for one in rows)]
    count = sum(len(one.worker_ids) for one in rows)
    labels = tuple(f"kubectl label node NODE {HARDWARE_LABEL}={hardware}" for hardware in _labels(rows))
    invite = f'--from-literal=invite="$(rollcast invite --quota {count})"'
    steps = (*labels, f"kubectl create secret generic {INVITE_SECRET} {invite}", "kubectl apply -f workers.yaml")
    return Files({"workers.yaml": "---\n".join(yaml_of(one) for one in documents)}, steps)


def label_of(hardware: str) -> str:
    """Return a name of hardware as a label's value: letters, digits, ``-``, ``_`` and ``.``."""
    kept = "".join(one if one.isalnum() or one in "-_." else "-" for one in hardware)
    return kept.strip("-_.")[:63]


def _labels(rows: Sequence[ChosenRow]) -> list[str]:
    return list(dict.fromkeys(label for one in rows if (label := label_of(one.row.hardware))))


def _metadata(name: str, component: str) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": "rollcast", "app.kubernetes.io/component": component}
    return {"name": name, "labels": labels}


def _configuration(rows: Sequence[ChosenRow]) -> dict[str, Any]:
    files = {}
    for one in rows:
        settings = peer_settings(one.row)
        link = {"host": "0.0.0.0", "port": PORT, **settings.pop("link", {})}
        places = {"state_folder": "/state/peer", "invite_file": "/invite/invite"}
        files[f"{one.name}.toml"] = tomli_w.dumps({**settings, **places, "link": link})
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(_NAME, "peer"), "data": files}


def _stateful_set(one: ChosenRow, image: str) -> dict[str, Any]:
    metadata = _metadata(one.name, "peer")
    labels = {**metadata["labels"], "rollcast/row": one.name}
    hardware = label_of(one.row.hardware)
    pod: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 30,
        "securityContext": {"fsGroup": 10001},
        **({"nodeSelector": {HARDWARE_LABEL: hardware}} if hardware else {}),
        "containers": [_container(one, image)],
        "volumes": [
            {"name": "configuration", "configMap": {"name": _NAME}},
            {"name": "invite", "secret": {"secretName": INVITE_SECRET}},
            {"name": "scratch", "emptyDir": {"sizeLimit": "2Gi"}},
        ],
    }
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": _STORAGE}}}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {**metadata, "labels": labels},
        "spec": {
            "serviceName": one.name,
            "replicas": len(one.worker_ids),
            "ordinals": {"start": 1},
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
            "volumeClaimTemplates": [{"metadata": {"name": "state"}, "spec": claim}],
        },
    }


def _container(one: ChosenRow, image: str) -> dict[str, Any]:
    memory = f"{_MEMORY_PER_ACCELERATOR_GIB * one.row.gpus}Gi"
    return {
        "name": "peer",
        "image": image,
        "args": [
            "peer",
            "run",
            f"/etc/rollcast/{one.name}.toml",
            "--set",
            "name=$(POD_NAME)",
            "--advertise",
            f"$(POD_IP):{PORT}",
        ],
        "env": [
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        ],
        "ports": [{"name": "chunks", "containerPort": PORT}],
        "livenessProbe": {
            "exec": {"command": ["rollcast", "peer", "status", "--json", "--state", "/state/peer"]},
            "initialDelaySeconds": 120,
            "periodSeconds": 30,
            "timeoutSeconds": 10,
        },
        "resources": {
            "requests": {"cpu": "2", "memory": memory},
            "limits": {"memory": memory, "nvidia.com/gpu": one.row.gpus},
        },
        "securityContext": _HARDENING,
        "volumeMounts": [
            {"name": "state", "mountPath": "/state"},
            {"name": "configuration", "mountPath": "/etc/rollcast", "readOnly": True},
            {"name": "invite", "mountPath": "/invite", "readOnly": True},
            {"name": "scratch", "mountPath": "/tmp"},
        ],
    }
