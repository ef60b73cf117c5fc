"""Describe the pod of a peer, as far as the provider's Jobs, the emitted files and the chart's peers agree on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

PORT = 7410
HARDWARE_LABEL = "rollcast/hardware"
"""The label that the cluster's operator sets on nodes, with the pool's ``hardware``."""
GPU_RESOURCE = "nvidia.com/gpu"
MEMORY_PER_ACCELERATOR_GIB = 32
_HARDENING = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "runAsUser": 10001,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


def label_of(text: str) -> str:
    """Return a text as a label's value: at most 63 letters, digits, ``-``, ``_`` and ``.``."""
    kept = "".join(one if (one.isalnum() and one.isascii()) or one in "-_." else "-" for one in text)
    return kept[:63].strip("-_.")


def metadata_of(name: str) -> dict[str, Any]:
    """Return an object's metadata with the labels that all objects of peers have."""
    return {"name": name, "labels": {"app.kubernetes.io/name": "rollcast", "app.kubernetes.io/component": "peer"}}


def pod_of(
    container: dict[str, Any], volumes: Sequence[Mapping[str, Any]], node_selector: dict[str, str]
) -> dict[str, Any]:
    """Return the specification of a peer's pod, with a scratch volume for the container's /tmp."""
    return {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 30,
        "securityContext": {"fsGroup": 10001},
        **({"nodeSelector": node_selector} if node_selector else {}),
        "containers": [container],
        "volumes": [*volumes, {"name": "scratch", "emptyDir": {"sizeLimit": "2Gi"}}],
    }


def container_of(
    image: str,
    configuration: str,
    mounts: Sequence[Mapping[str, Any]],
    *,
    options: Sequence[str] = (),
    devices: dict[str, int],
    memory_gib: int,
) -> dict[str, Any]:
    """Return a peer's container.

    Args:
        configuration: path of its configuration within the container.
        mounts: its volumes; one must be /state, where it keeps what it owns.
        options: further options of ``rollcast peer run``.
        devices: the accelerators that it asks for, by the name of the resource.
    """
    memory = f"{memory_gib}Gi"
    fields = {"POD_NAME": "metadata.name", "POD_IP": "status.podIP"}
    status = ["rollcast", "peer", "status", "--json", "--state", "/state/peer"]
    return {
        "name": "peer",
        "image": image,
        "args": ["peer", "run", configuration, *options, "--advertise", f"$(POD_IP):{PORT}"],
        "env": [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()],
        "ports": [{"name": "chunks", "containerPort": PORT}],
        "livenessProbe": {
            "exec": {"command": status},
            "initialDelaySeconds": 120,
            "periodSeconds": 30,
            "timeoutSeconds": 10,
        },
        "resources": {"requests": {"cpu": "2", "memory": memory}, "limits": {"memory": memory, **devices}},
        "securityContext": _HARDENING,
        "volumeMounts": [*mounts, {"name": "scratch", "mountPath": "/tmp"}],
    }
