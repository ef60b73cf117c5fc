"""Write Kubernetes' objects: a StatefulSet for each row of the pool, as the Helm chart of deploy/ writes its peers.

Nodes are chosen by the label HARDWARE_LABEL, which the cluster's operator sets to the pool's ``hardware``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tomli_w

from capacity.emit.chosen import ChosenRow, Files, peer_settings
from capacity.emit.yaml import yaml_of
from capacity.providers.kubernetes.pods import (
    GPU_RESOURCE,
    HARDWARE_LABEL,
    MEMORY_PER_ACCELERATOR_GIB,
    PORT,
    container_of,
    label_of,
    metadata_of,
    pod_of,
)

INVITE_SECRET = "rollcast-invite"
_NAME = "rollcast-workers"
_STORAGE = "50Gi"


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


def _labels(rows: Sequence[ChosenRow]) -> list[str]:
    return list(dict.fromkeys(label for one in rows if (label := label_of(one.row.hardware))))


def _configuration(rows: Sequence[ChosenRow]) -> dict[str, Any]:
    files = {}
    for one in rows:
        settings = peer_settings(one.row)
        link = {"host": "0.0.0.0", "port": PORT, **settings.pop("link", {})}
        places = {"state_folder": "/state/peer", "invite_file": "/invite/invite"}
        files[f"{one.name}.toml"] = tomli_w.dumps({**settings, **places, "link": link})
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata_of(_NAME), "data": files}


def _stateful_set(one: ChosenRow, image: str) -> dict[str, Any]:
    metadata = metadata_of(one.name)
    labels = {**metadata["labels"], "rollcast/row": one.name}
    hardware = label_of(one.row.hardware)
    pod = pod_of(
        _container(one, image),
        [
            {"name": "configuration", "configMap": {"name": _NAME}},
            {"name": "invite", "secret": {"secretName": INVITE_SECRET}},
        ],
        {HARDWARE_LABEL: hardware} if hardware else {},
    )
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
    mounts: list[dict[str, Any]] = [
        {"name": "state", "mountPath": "/state"},
        {"name": "configuration", "mountPath": "/etc/rollcast", "readOnly": True},
        {"name": "invite", "mountPath": "/invite", "readOnly": True},
    ]
    return container_of(
        image,
        f"/etc/rollcast/{one.name}.toml",
        mounts,
        options=["--set", "name=$(POD_NAME)"],
        devices={GPU_RESOURCE: one.row.gpus},
        memory_gib=MEMORY_PER_ACCELERATOR_GIB * one.row.gpus,
    )
