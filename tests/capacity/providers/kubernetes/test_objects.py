"""Test the objects of a worker: what its pod runs, where it may run, and which objects are its own."""

from __future__ import annotations

import tomllib
from types import SimpleNamespace as Object

import pytest

from capacity.providers.base import WorkerTag
from capacity.providers.config import KubernetesConfig
from capacity.providers.kubernetes import objects
from capacity.providers.tag_names import name_of
from peer.config import PeerConfig
from rollcast.cli.main import app
from rollcast.cli.roles import peer
from tests.capacity.providers.pool_machines import machines

TAG = WorkerTag("run-1", "h100", 3)
(MACHINE,) = machines(
    {"worker_id": "h100", "start": "kubernetes", "hardware": "NVIDIA H100 80GB HBM3", "gpus": 2, "egress_usd_per_gb": 1}
)
CONFIG = KubernetesConfig(image="peer:1", queue="team", tolerations=[{"key": "gpu", "operator": "Exists"}])


def test_the_pod_asks_for_its_rows_devices_on_nodes_of_its_hardware() -> None:
    job = objects.job_of(TAG, MACHINE.row, CONFIG)
    pod = job["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"rollcast/hardware": "NVIDIA-H100-80GB-HBM3"}
    assert pod["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert pod["containers"][0]["resources"]["limits"] == {"memory": "64Gi", "nvidia.com/gpu": 2}
    assert (pod["restartPolicy"], job["spec"]["backoffLimit"]) == ("Never", 0)
    assert job["spec"]["activeDeadlineSeconds"] == 168 * 3600
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert job["spec"]["template"]["metadata"]["labels"].items() <= job["metadata"]["labels"].items()


def test_a_pod_without_accelerators_asks_for_none_and_any_node_will_do() -> None:
    config = KubernetesConfig(image="peer:1", accelerator_resource="", hardware_label="")
    pod = objects.job_of(TAG, MACHINE.row, config)["spec"]["template"]["spec"]
    assert "nodeSelector" not in pod
    assert pod["containers"][0]["resources"]["limits"] == {"memory": "64Gi"}


def test_the_pod_runs_a_peer_with_the_secrets_configuration() -> None:
    pod = objects.job_of(TAG, MACHINE.row, CONFIG)["spec"]["template"]["spec"]
    words = [word.replace("$(POD_IP)", "10.0.0.1") for word in pod["containers"][0]["args"]]
    command, bound, _ = app.parse_args(words, exit_on_error=False)
    assert (command, str(bound.arguments["config"])) == (peer, "/etc/rollcast/peer.toml")
    secret = objects.secret_of(TAG, MACHINE, {"engine": {"kind": "jax"}}, "invite-1", "uid-1", CONFIG)
    (volume,) = [one for one in pod["volumes"] if one["name"] == "configuration"]
    assert volume["secret"]["secretName"] == secret["metadata"]["name"] == name_of(TAG)
    settings = tomllib.loads(secret["stringData"]["peer.toml"])
    config = PeerConfig.model_validate(settings)
    assert (config.name, config.reconnect_timeout_s) == ("h100.3", 120.0)
    assert (config.link.host, config.link.port, config.link.upload_mbit_s_max) == ("0.0.0.0", 7410, 40.0)
    assert settings["invite_file"] == "/etc/rollcast/invite"
    assert secret["metadata"]["ownerReferences"][0] | {"uid": "uid-1", "kind": "Job"} == {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": name_of(TAG),
        "uid": "uid-1",
    }


def test_a_stopped_job_has_no_pod_and_ends_at_once() -> None:
    spec = objects.stopped_job_of(TAG)["spec"]
    assert (spec["parallelism"], spec["activeDeadlineSeconds"]) == (0, 1)


@pytest.mark.parametrize(
    ("conditions", "parallelism", "deleted", "stopped"),
    [
        ((), 1, None, False),
        ((("Suspended", "True"),), 1, None, False),
        ((("Failed", "False"),), 1, None, False),
        ((("Failed", "True"),), 1, None, True),
        ((("Complete", "True"),), 1, None, True),
        ((), 0, None, True),
        ((), 1, "2026-01-01", True),
    ],
)
def test_a_job_is_stopped(
    conditions: tuple[tuple[str, str], ...], parallelism: int, deleted: str | None, stopped: bool
) -> None:
    status = Object(conditions=[Object(type=kind, status=value) for kind, value in conditions] or None)
    job = Object(status=status, spec=Object(parallelism=parallelism), metadata=Object(deletion_timestamp=deleted))
    assert objects.is_stopped(job) is stopped
