"""Test what starts a learner on several hosts: its commands, ports and numbers fit each other and the learner."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from learner.config import LearnerConfig
from learner.distributed.jax_internals import launchers
from rollcast.cli.main import app
from rollcast.runtime.process import EXIT_INTERRUPTED

DEPLOY = Path(__file__).parents[2] / "deploy"
SBATCH = DEPLOY / "slurm" / "learner.sbatch"
VARIANTS = {"gpu": ("cuda13", "nvidia.com/gpu"), "tpu": ("tpu", "google.com/tpu")}


def jobset(variant: str) -> tuple[LearnerConfig, dict[str, Any]]:
    """Return the learner's configuration and the JobSet of a manifest."""
    files, found = yaml.safe_load_all((DEPLOY / "jobset" / f"{variant}.yaml").read_text())
    config = LearnerConfig.model_validate(tomllib.loads(files["data"]["learner.toml"]))
    assert found["apiVersion"] == "jobset.x-k8s.io/v1alpha2"
    return config, found


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_hosts_of_a_jobset_are_the_processes_and_devices_of_its_learner(variant: str) -> None:
    config, found = jobset(variant)
    (hosts,) = found["spec"]["replicatedJobs"]
    job = hosts["template"]["spec"]
    assert job["completionMode"] == "Indexed"
    assert job["completions"] == job["parallelism"]
    (container,) = job["template"]["spec"]["containers"]
    image, resource = VARIANTS[variant]
    assert container["image"] == f"rollcast-learner:0.1.0-{image}"
    mesh = config.mesh
    assert mesh.data * mesh.fsdp * mesh.tensor == job["parallelism"] * container["resources"]["limits"][resource]
    assert config.distributed.shared_run_folder
    assert config.distributed.stop_timeout_s < job["template"]["spec"]["terminationGracePeriodSeconds"]


def test_gpu_pods_are_told_their_places_and_where_the_first_one_is() -> None:
    _, found = jobset("gpu")
    (hosts,) = found["spec"]["replicatedJobs"]
    job = hosts["template"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    # Kubernetes sets JOB_COMPLETION_INDEX in the pods of an Indexed Job, and expands it in arguments.
    given = [argument.replace("$(JOB_COMPLETION_INDEX)", "1") for argument in container["args"]]
    _, bound, _ = app.parse_args(given, exit_on_error=False, print_error=False)
    options = bound.arguments
    assert (options["processes"], options["process_id"]) == (job["parallelism"], 1)
    host, port = options["coordinator_address"].split(":")
    name = found["metadata"]["name"]
    assert host == f"{name}-{hosts['name']}-0-0.{name}"
    assert int(port) in [each["containerPort"] for each in container["ports"]]
    assert found["spec"]["network"] == {"enableDNSHostnames": True, "publishNotReadyAddresses": True}


def test_tpu_pods_find_their_places_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    _, found = jobset("tpu")
    job = found["spec"]["replicatedJobs"][0]["template"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    _, bound, _ = app.parse_args(container["args"], exit_on_error=False, print_error=False)
    assert not {"processes", "process_id", "coordinator_address"} & set(bound.arguments)
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "localhost")
    monkeypatch.setenv("MEGASCALE_COORDINATOR_ADDRESS", "localhost")
    (gke,) = (each for each in launchers() if each.name == "gketpu")
    port = int(gke.get_coordinator_address(1, None).split(":")[1])
    assert port in [each["containerPort"] for each in container["ports"]]
    topology = job["template"]["spec"]["nodeSelector"]["cloud.google.com/gke-tpu-topology"]
    x, y, z = map(int, topology.split("x"))
    assert x * y * z == job["parallelism"] * container["resources"]["limits"]["google.com/tpu"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_pods_read_the_key_from_a_file_that_only_they_may_read(variant: str) -> None:
    config, found = jobset(variant)
    pod = found["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    (first,) = pod["initContainers"]
    assert first["command"] == ["install", "-m", "0600", "/secrets/learner.key", str(config.identity_file)]
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in (first, *pod["containers"]):
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        rights = container["securityContext"]
        assert rights["readOnlyRootFilesystem"] is rights["runAsNonRoot"] is True
        assert rights["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]
    paths = [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]]
    for path in (config.run_folder, config.identity_file, config.invite_file):
        assert path is not None
        assert any(path.is_relative_to(mounted) for mounted in paths), path


def sbatch(tmp_path: Path, srun: str) -> tuple[int, list[str]]:
    """Run the job's script with this program as srun; return its status and what was asked of Slurm."""
    asked, task = tmp_path / "asked", tmp_path / "task"
    scripts = {"srun": f"echo $$ >{task}\n{srun}", "scancel": f"kill -TERM $(cat {task})", "scontrol": "exit 0"}
    for name, script in scripts.items():
        program = tmp_path / name
        program.write_text(f'#!/bin/bash\necho {name} "$@" >>{asked}\n{script}\n')
        program.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    command = ["bash", str(SBATCH), "learner.toml", "--set", "seed=1"]
    done = subprocess.run(command, env=environment, timeout=60, check=False)
    return done.returncode, asked.read_text().splitlines()


STOPPED_IN_ORDER = f'sleep 60 & trap "kill $!; exit {EXIT_INTERRUPTED}" TERM; kill -USR1 $PPID; wait'


@pytest.mark.parametrize(
    ("srun", "status", "requeued"),
    [("exit 0", 0, False), ("exit 70", 70, False), (STOPPED_IN_ORDER, EXIT_INTERRUPTED, True)],
)
def test_a_job_at_its_time_limit_saves_and_is_requeued(srun: str, status: int, requeued: bool, tmp_path: Path) -> None:
    found, (step, *later) = sbatch(tmp_path, srun)
    assert found == status
    given = step.split("rollcast ")[1].split()
    _, bound, _ = app.parse_args(given, exit_on_error=False, print_error=False)
    assert bound.arguments["config"] == Path("learner.toml")
    assert later == (["scancel --signal=TERM 7", "scontrol requeue 7"] if requeued else [])


def test_a_job_has_one_task_on_each_node_and_time_to_save() -> None:
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=(.+)$", SBATCH.read_text(), re.MULTILINE))
    assert options["ntasks-per-node"] == "1"
    assert options["signal"].startswith("B:USR1@")
    assert int(options["signal"].split("@")[1]) > LearnerConfig().distributed.stop_timeout_s
