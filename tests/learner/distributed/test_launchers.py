"""Test that a learner's processes find their places by what launchers set; tests.learner.distributed.hosts joins so."""

from __future__ import annotations

from typing import Any

import pytest

from learner.config import LearnerConfig
from learner.distributed.jax_internals import launchers
from learner.distributed.launchers import placed_by_launcher
from rollcast.runtime.errors import ConfigError

SHARED = LearnerConfig.model_validate({"distributed": {"shared_run_folder": True}})

SLURM = {
    "SLURM_JOB_ID": "8195",
    "SLURM_STEP_NODELIST": "gpu[007-009,012]",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "0",
}
OPEN_MPI = {
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
}
SLICE = {"TPU_WORKER_HOSTNAMES": "localhost,host-1,host-2,host-3", "TPU_WORKER_ID": "2"}
SLICES = SLICE | {
    "MEGASCALE_COORDINATOR_ADDRESS": "localhost",
    "MEGASCALE_NUM_SLICES": "2",
    "MEGASCALE_SLICE_ID": "1",
}


def place(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], config: LearnerConfig = SHARED
) -> tuple[Any, ...]:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if "TPU_WORKER_ID" in variables:
        monkeypatch.setattr("jax._src.clusters.cloud_tpu_cluster.running_in_cloud_tpu_vm", True)
        variables = {
            "MEGASCALE_NUM_SLICES": "",
            "MEGASCALE_SLICE_ID": "",
            "MEGASCALE_COORDINATOR_ADDRESS": "",
        } | variables
        monkeypatch.setattr("jax._src.clusters.cloud_tpu_cluster.get_tpu_env_value", variables.get)
    found = placed_by_launcher(config, launchers(), None).distributed
    return found.processes, found.process_id, found.coordinator_address


def test_without_a_launcher_there_is_one_process() -> None:
    assert placed_by_launcher(LearnerConfig(), launchers(), None).distributed.processes == 1


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (SLURM, (4, 3, "gpu007:61443")),
        (OPEN_MPI, (2, 1, "10.96.0.1:62624")),
        (SLICE, (4, 2, "localhost:8482")),
        (SLICES, (8, 6, "localhost:8482")),
        (SLURM | {"SLURM_NTASKS": "1", "SLURM_PROCID": "0"}, (1, 0, "")),
        ({name: value for name, value in SLURM.items() if name != "SLURM_STEP_NODELIST"}, (1, 0, "")),  # not by srun
    ],
)
def test_a_launcher_numbers_the_processes(
    variables: dict[str, str], expected: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert place(monkeypatch, variables) == expected


def test_settings_take_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    two = {"processes": 2, "process_id": 1, "coordinator_address": "10.0.0.1:8476", "shared_run_folder": True}
    assert place(monkeypatch, SLURM, LearnerConfig.model_validate({"distributed": two})) == (2, 1, "10.0.0.1:8476")
    alone = LearnerConfig.model_validate({"distributed": {"processes": 1}})
    assert place(monkeypatch, SLURM, alone) == (1, 0, "")
    private = {"coordinator_address": "ib0.gpu007:8476", "shared_run_folder": True}
    assert place(monkeypatch, SLURM, LearnerConfig.model_validate({"distributed": private})) == (
        4,
        3,
        "ib0.gpu007:8476",
    )
    assert placed_by_launcher(SHARED, launchers(), "8476").distributed.coordinator_address == "gpu007:8476"


def test_what_a_launcher_starts_must_be_a_learner_of_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"set checkpoint\.folder"):
        place(monkeypatch, SLURM, LearnerConfig())


def test_variables_that_cannot_be_read_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="the launcher slurm does not say which process") as raised:
        place(monkeypatch, SLURM | {"SLURM_PROCID": "third"})
    assert "third" in raised.value.cause
    assert "distributed.processes = 1" in raised.value.fix
