"""Play the hosts of a learner: teams of processes, one team after the other, that share a folder but no memory.

    python -m tests.learner.distributed.hosts FOLDER TEAMS

TEAMS is the JSON of a list of `Team`s. Each process is placed by the variables that Slurm would set, so no setting
names it. The processes are forked once jax is imported and before it is used, because importing it takes most of the
time of so small a model. Prints the exit statuses of each team's processes as one JSON list; the leaders write what
they see to FOLDER/team-NUMBER.jsonl, one line for each step.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax._src import compilation_cache, compiler

from learner.checkpoints.arrays import ArrayWrite
from learner.checkpoints.checkpoint import Checkpoints, HostState
from learner.checkpoints.fingerprints import digest_of
from learner.config import CheckpointConfig, DistributedConfig, LearnerConfig, MeshConfig, OptimiserConfig
from learner.distributed.processes import TrainerOf, run_processes
from learner.distributed.supervisor import WORKER
from learner.training.trainer import Trainer, behaviour_by_version
from rollcast.policy.config import ModelConfig
from rollcast.policy.snapshot import Snapshot, thaw
from tests.learner.tiny import tiny_batch

MODEL = ModelConfig(
    vocabulary_size=12, layers=1, width=32, query_heads=4, key_value_heads=2, head_size=8, feed_forward_width=32
)
CONFIG = LearnerConfig(seed=1, optimiser=OptimiserConfig(learning_rate=3e-3, micro_batch_tokens=48))
DEVICES = 4  # of all processes of a team
REWARDS = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0]
FIRST_SLURM_PORT = 61440  # jax's: the job's id modulo 4096 is added


@dataclass(frozen=True)
class Team:
    """Processes that train together up to a step.

    Args:
        processes: how many; the first `missing` of them are never started.
        until: the step after which the team is done.
        saves: the step that is saved.
        loses: process that is killed at the end while the others train on; None: the team ends in order.
        shared: whether all processes write the versions' files.
        repeats: whether each step is taken again from the checkpoint before it.
    """

    processes: int
    until: int = 0
    saves: int = 0
    loses: int | None = None
    shared: bool = False
    repeats: bool = False
    missing: int = 0


def main() -> None:
    gc.disable()  # a fork would have to copy what the collector touches, and the processes live for seconds
    folder, teams = Path(sys.argv[1]), [Team(**values) for values in json.loads(sys.argv[2])]
    print(json.dumps([run(folder, number, team) for number, team in enumerate(teams)]))


def run(folder: Path, number: int, team: Team) -> list[int]:
    """Return the exit statuses of the team's processes; below 0 it is the number of a signal."""
    job = free_port() - FIRST_SLURM_PORT
    reached, leader_says = os.pipe()
    members = {}
    for rank in range(team.missing, team.processes):
        members[rank] = os.fork()
        if not members[rank]:
            os.environ |= slurm_environment(job, rank, team.processes) | {WORKER: "1"}
            play(folder, number, team, leader_says)
    os.close(leader_says)
    if os.read(reached, 1) and team.loses is not None:
        os.kill(members[team.loses], signal.SIGKILL)
    os.close(reached)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in members.values()]


def slurm_environment(job: int, rank: int, processes: int) -> dict[str, str]:
    """Return what srun sets for a task of a job with one task on each host; here all hosts are this machine."""
    return {
        "SLURM_JOB_ID": str(job),
        "SLURM_STEP_NODELIST": ",".join(["localhost"] * processes),
        "SLURM_NTASKS": str(processes),
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": "0",
    }


def free_port() -> int:
    """Return a free port among those that jax derives from the id of a Slurm job."""
    for port in range(FIRST_SLURM_PORT + os.getpid() % 4000, FIRST_SLURM_PORT + 4096):
        with socket.socket() as free:
            try:
                free.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise AssertionError("no port is free")


def play(folder: Path, number: int, team: Team, leader_says: int) -> None:
    """Be one process of a team; it never returns."""
    jax.config.update("jax_num_cpu_devices", DEVICES // team.processes)
    compiler._cache_write = write_to_cache
    config = CONFIG.model_copy(
        update={
            "mesh": MeshConfig(fsdp=DEVICES),
            "checkpoint": CheckpointConfig(folder=str(folder / "checkpoints")),
            "distributed": DistributedConfig(
                shared_run_folder=team.shared, join_timeout_s=2.0 if team.missing else 100.0, lost_after_s=60.0
            ),
        }
    )

    async def life(make_trainer: TrainerOf) -> int:
        await asyncio.to_thread(lead, make_trainer, folder, number, team, leader_says)
        return 0

    asyncio.run(run_processes(config, asyncio.Event(), life))
    raise AssertionError("a worker ends in run_processes")


def write_to_cache(key: str, compile_s: float, name: str, backend: Any, executable: Any, callbacks: Any) -> None:
    """Keep what any process compiled. jax lets process 0 alone write, but the others' keys are different on CPUs."""
    compilation_cache.put_executable_and_time(key, name, executable, backend, int(compile_s))


def lead(make_trainer: TrainerOf, folder: Path, number: int, team: Team, leader_says: int) -> None:
    assert jax.config.read("jax_cuda_visible_devices") == "all", "each process uses every GPU of its host"
    with (folder / f"team-{number}.jsonl").open("w") as lines:
        trainer = make_trainer(MODEL)
        for found in course(trainer, folder, team):
            print(json.dumps(found), file=lines, flush=True)
        os.write(leader_says, b"!")
        while team.loses is not None:
            train(trainer, trainer.snapshot())


def course(trainer: Trainer, folder: Path, team: Team) -> Iterator[dict[str, Any]]:
    """Yield what the trainer does, from the newest checkpoint in a folder on or from the start, step by step."""
    checkpoints = Checkpoints(folder / "checkpoints", keep=2)
    restored = checkpoints.restore(lambda _, saved: trainer.load(saved))
    step = restored.host.step if restored else 0
    snapshot = trainer.snapshot()
    yield {"step": step, "version": hash_of(snapshot), "digest": restored and restored.digest}
    while step < team.until:
        metrics, again = train(trainer, snapshot), None
        if team.repeats:
            once = metrics, trainer.snapshot()
            checkpoints.restore(lambda _, saved: trainer.load(saved))
            again = (train(trainer, snapshot), trainer.snapshot()) == once
        step, snapshot = step + 1, trainer.snapshot()
        digest = save(trainer, checkpoints, step) if step == team.saves else None
        yield {"step": step, "version": hash_of(snapshot), "digest": digest, "metrics": metrics, "again": again}


def train(trainer: Trainer, snapshot: Snapshot) -> dict[str, float]:
    """Take a step on rollouts of a version, whose log-probabilities are a little off, and return its metrics."""
    batch = tiny_batch(REWARDS)
    off = np.random.default_rng(0).normal(0.0, 0.2, batch.tokens.shape).astype(np.float32) * batch.loss_mask
    params = thaw(MODEL, snapshot.tensors, snapshot.state_bytes)
    return trainer.train_step(batch, behaviour_by_version(trainer, batch, lambda _: params).logprobs - off)


def hash_of(snapshot: Snapshot) -> str:
    return hashlib.sha256(snapshot.state_bytes).hexdigest()


def save(trainer: Trainer, checkpoints: Checkpoints, step: int) -> str:
    """Save a checkpoint and return its digest."""
    host = HostState(step, step, "run", 0, 1, "{}", MODEL.model_dump_json(), "", {}, 8, [], {})
    writes: list[ArrayWrite] = []

    def write(path: str) -> ArrayWrite:
        writes.append(trainer.begin_save(path))
        return writes[0]

    checkpoints.begin(host, write).commit()
    return digest_of(writes[0].finish().records)


if __name__ == "__main__":
    main()
