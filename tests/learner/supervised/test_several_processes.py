"""Test supervised training on two real processes, each started with the command as on a host of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from learner.evaluation.offline import load_policy
from learner.supervised.config import SftConfig
from rollcast.runtime.run_folder import RunFolder
from tests.learner.distributed.test_processes import free_address
from tests.learner.supervised.test_session import configured, metrics, trained

_DEADLINE_S = 380.0


def run_two(config: SftConfig, folder: Path) -> None:
    """Run `rollcast sft` twice, as processes 0 and 1; both must end in order."""
    file = folder / "sft.toml"
    text = [f'run_folder = "{config.run_folder}"', f"epochs = {config.epochs}", f"row_tokens = {config.row_tokens}"]
    text += [f"batch_rows = {config.batch_rows}", f"held_out_every_steps = {config.held_out_every_steps}"]
    text += ["[data]", f'path = "{config.data.path}"', f"held_out_share = {config.data.held_out_share}"]
    file.write_text("\n".join(text) + "\n")
    settings = {
        "model": config.model.model_dump(exclude_defaults=True),
        "optimiser": config.optimiser.model_dump(exclude_defaults=True),
        "checkpoint": {"every_steps": config.checkpoint.every_steps},
        "mesh": {"fsdp": 2},
        "distributed": {"processes": 2, "coordinator_address": free_address(), "shared_run_folder": True},
    }
    shared = [
        f"--set={part}.{name}={json.dumps(value)}"
        for part, values in settings.items()
        for name, value in values.items()
    ]
    command = [sys.executable, "-m", "rollcast.cli.main", "sft", str(file), *shared]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    with ExitStack() as stack:
        both = []
        for number in range(2):
            own = [*command, f"--set=distributed.process_id={number}"]
            both.append(
                subprocess.Popen(own, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            )
            stack.callback(both[-1].kill)
        said = [process.communicate(timeout=_DEADLINE_S)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], "\n".join(said)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_processes_train_as_one(tmp_path: Path) -> None:
    alone = configured(tmp_path)
    together = alone.model_copy(update={"run_folder": tmp_path / "together"})
    assert trained(alone)
    run_two(together, tmp_path)
    for mine, theirs in zip(metrics(alone), metrics(together), strict=True):
        assert theirs == pytest.approx(mine, abs=1e-4)
    summary = json.loads(RunFolder(together.run_folder).summary.read_text())
    assert summary["held_out_loss"] < summary["held_out_loss_before"] - 0.3
    (_, one), (_, other) = load_policy(alone.run_folder), load_policy(together.run_folder)
    assert all(np.allclose(one[name], other[name], atol=1e-3) for name in one)
