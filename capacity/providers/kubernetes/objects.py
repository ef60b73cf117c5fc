"""Write and read the objects of a worker: a Job, the Secret that it owns, and the pod that runs it. Pure.

A Job is its tag's record: it stays for a day after its worker has ended, so that the tag is not started again. A Job
with a parallelism of 0 is a worker that was stopped, perhaps before it was started.

Source: Kubernetes' API batch/v1, in which a Job's parallelism and deadline may change and its pod template may not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tomli_w

from capacity.inputs.pool.rows import PoolRow
from capacity.providers.base import WorkerTag
from capacity.providers.config import KubernetesConfig
from capacity.providers.hosts import peer_config
from capacity.providers.kubernetes.pods import PORT, container_of, label_of, metadata_of, pod_of
from capacity.providers.machines import Machine
from capacity.providers.tag_names import name_of, run_digest

RUN_LABEL = "rollcast/run"
WORKER_LABEL = "rollcast/worker"
STOPPED: Mapping[str, Any] = {"spec": {"parallelism": 0, "activeDeadlineSeconds": 1}}
"""The change that stops a Job for good: its pod is deleted, and none follows."""
_KEPT_S = 24 * 3600  # for which a Job that ended is kept, to void a start that was in flight
_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


def job_of(tag: WorkerTag, row: PoolRow, config: KubernetesConfig) -> dict[str, Any]:
    """Return a worker's Job: its pod is started once, and not again when it ends or is evicted."""
    metadata = _labelled(tag)
    labels = dict(metadata["labels"])
    if config.queue:
        metadata["labels"][_QUEUE_LABEL] = config.queue
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": max(1, round(config.hours_max * 3600)),
            "ttlSecondsAfterFinished": _KEPT_S,
            "template": {"metadata": {"labels": labels}, "spec": _pod(tag, row, config)},
        },
    }


def stopped_job_of(tag: WorkerTag) -> dict[str, Any]:
    """Return the Job that voids a start which may still be in flight: it never has a pod."""
    container = {"name": "none", "image": "none"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _labelled(tag),
        "spec": {
            **STOPPED["spec"],
            "ttlSecondsAfterFinished": _KEPT_S,
            "template": {"spec": {"containers": [container], "restartPolicy": "Never"}},
        },
    }


def secret_of(
    tag: WorkerTag, machine: Machine, peer: Mapping[str, Any], invite: str, job_uid: str, config: KubernetesConfig
) -> dict[str, Any]:
    """Return the Secret with the worker's invite and configuration; it goes when its Job goes.

    Args:
        peer: the peer's configuration, which ``peer_config`` completes. The peer listens on its pod's address.
    """
    settings = peer_config(tag, peer, machine.upload_cap_bytes_per_second, remote=False)
    settings["link"] = {"host": "0.0.0.0", "port": PORT, **settings["link"]}
    settings |= {"invite_file": "/etc/rollcast/invite", "state_folder": "/state/peer"}
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name_of(tag), "uid": job_uid}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {**_labelled(tag), "namespace": config.namespace, "ownerReferences": [owner]},
        "stringData": {"invite": f"{invite}\n", "peer.toml": tomli_w.dumps(settings)},
    }


def labels_of(tag: WorkerTag) -> dict[str, str]:
    """Return the labels by which the objects of a worker are found."""
    return {RUN_LABEL: run_digest(tag.run_id), WORKER_LABEL: name_of(tag)}


def has_ended(job: Any) -> bool:
    """Return whether nothing of a Job will run any more; its last pod may still be ending.

    Args:
        job: a V1Job.
    """
    conditions = (job.status.conditions if job.status else None) or ()
    return any(one.type in ("Complete", "Failed") and one.status == "True" for one in conditions)


def is_stopped(job: Any) -> bool:
    """Return whether a Job has ended, is being deleted, or was told to have no pod."""
    return has_ended(job) or job.metadata.deletion_timestamp is not None or job.spec.parallelism == 0


def is_alive(pod: Any) -> bool:
    """Return whether a pod, a V1Pod, runs or may still run."""
    return not pod.status or pod.status.phase not in ("Succeeded", "Failed")


def _labelled(tag: WorkerTag) -> dict[str, Any]:
    metadata = metadata_of(name_of(tag))
    return {**metadata, "labels": metadata["labels"] | labels_of(tag)}


def _pod(tag: WorkerTag, row: PoolRow, config: KubernetesConfig) -> dict[str, Any]:
    mounts: list[dict[str, Any]] = [
        {"name": "state", "mountPath": "/state"},
        {"name": "configuration", "mountPath": "/etc/rollcast", "readOnly": True},
    ]
    container = container_of(
        config.image,
        "/etc/rollcast/peer.toml",
        mounts,
        devices={config.accelerator_resource: row.gpus} if config.accelerator_resource else {},
        memory_gib=config.memory_gib_per_accelerator * row.gpus,
    )
    volumes = [
        {"name": "state", "emptyDir": {"sizeLimit": f"{config.storage_gib}Gi"}},
        {"name": "configuration", "secret": {"secretName": name_of(tag)}},
    ]
    hardware = label_of(row.hardware) if config.hardware_label else ""
    pod = pod_of(container, volumes, {config.hardware_label: hardware} if hardware else {})
    return {**pod, "restartPolicy": "Never", "tolerations": config.tolerations}
