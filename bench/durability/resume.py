"""Kill the learner with SIGKILL at every labelled point and restart it: check that it reaches the same bits.

A recorded stream of batches feeds a real learner process over TLS: the batch of a step is random tokens under versions
that follow from the step alone. Each trial kills the learner at one label, kills it again at another, random one, and
restarts it until the run ends. ``identical`` is 1 when in every trial each version has the same state hash and parent
hash as in the uninterrupted run, trained ids and final state are the same to the bit, and no version was announced with
two contents.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.machine import Outcome
from learner.checkpoints.arrays import SavedArrays, read_arrays
from learner.checkpoints.checkpoint import Checkpoints, HostState
from learner.config import LearnerConfig
from learner.kill_points import LABELS
from rollcast.runtime.errors import ProcessFailed
from tests.learner.scripted_run import LOOPBACK, Authority, Script, ScriptedCoordinator, ScriptedOrigin

STEPS = 6
STALENESS_LIMIT = 1  # so small that versions are removed within the run
LIFE_TIMEOUT_S = 240.0
KILLED = -9

#: Reached by a resumed learner only: another kill comes first.
WHEN_RESUMED = ("restored", "batch_replayed")
#: Not on the way of a learner whose replay gives the same bits.
ELSEWHERE = ("epoch_opened",)
#: Which occurrence to die at, where the first would come before the first step.
OCCURRENCE = {
    **dict.fromkeys(("before_batch", "batch_received", "behaviour_done", "gradient_done", "step_counted"), 4),
    **dict.fromkeys(("state_hashed", "version_signed", "version_half_written", "version_written"), 4),
    **dict.fromkeys(("version_renamed", "version_durable", "version_kept", "pushed", "announced"), 4),
    **dict.fromkeys(("snapshot_taken", "before_report", "reported"), 3),
    **dict.fromkeys(("checkpoint_begun", "checkpoint_writing", "checkpoint_renamed", "checkpoint_durable"), 2),
    **dict.fromkeys(("warm_starting",), 2),
    **dict.fromkeys(("pushing",), 9),
}


@dataclass(frozen=True, slots=True)
class Kill:
    """The label and the occurrence of it at which the learner is killed."""

    label: str
    occurrence: int

    def __str__(self) -> str:
        return f"{self.label}:{self.occurrence}"


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Everything that must be identical between runs."""

    versions: tuple[tuple[int, bytes, bytes], ...]  # number, state hash, parent hash, in the order of numbers
    contents: int  # most different announcements of one version: 1
    trained: tuple[tuple[int, ...], ...]
    digest: str  # hash of parameters and optimiser at the end


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--labels", nargs="*", default=[], help="only these kill points")
    parser.add_argument("--seed", type=int, default=0, help="seed of the second kills")


def run(arguments: argparse.Namespace) -> Outcome:
    labels = arguments.labels or [label for label in LABELS if label not in ELSEWHERE]
    figures = asyncio.run(measure(labels, arguments.seed))
    return Outcome({"steps": STEPS, "seed": arguments.seed, "labels": labels}, figures)


async def measure(labels: list[str], seed: int) -> dict[str, float]:
    """Kill the learner at every label, and compare each run with the one that was not interrupted.

    Raises:
        ProcessFailed: a learner ended badly, or did not reach its label.
    """
    chance = random.Random(seed)
    identical, lives = True, 0
    with tempfile.TemporaryDirectory(prefix="rollcast-resume-") as name:
        folder = Path(name)
        authority = Authority(folder / "authority")
        async with lives_of() as learner:
            reference, _ = await one_run(authority, folder / "reference", learner, [])
            for label in labels:
                first = Kill(label, OCCURRENCE.get(label, 1))
                second = Kill(chance.choice(labels), chance.randint(1, 3))
                kills = [Kill("reported", 3), first] if label in WHEN_RESUMED else [first, second]
                trajectory, lived = await one_run(authority, folder / label, learner, kills, must=first)
                same = trajectory == reference and trajectory.contents == 1
                identical, lives = identical and same, lives + lived
                print(f"{label}: {'identical' if same else 'DIFFERENT'} after {lived} lives", file=sys.stderr)
    return {"points": len(labels), "identical": float(identical), "lives": lives}


# ---------------------------------------------------------------- one trial


async def one_run(
    authority: Authority, folder: Path, learner: Learner, kills: list[Kill], *, must: Kill | None = None
) -> tuple[Trajectory, int]:
    """Run the learner from its start to its end, and return its trajectory and the number of lives that it took."""
    script = Script(steps=STEPS, staleness_limit=STALENESS_LIMIT, newest_usable_version=lambda step: max(0, step - 1))
    coordinator, origin = ScriptedCoordinator(authority, script), ScriptedOrigin(authority)
    coordinator.origin_address = await origin.start()
    port = await coordinator.start()
    try:
        authority.credentials(authority.learner, "learner").save(folder / "run" / "secrets" / "learner")
        config = _config(authority, folder, port)
        lives = await _live_on(learner, config, folder / "log", kills, must)
    finally:
        await coordinator.stop()
        await origin.stop()
    return await asyncio.to_thread(_trajectory, coordinator, folder / "run"), lives


async def _live_on(learner: Learner, config: dict[str, Any], log: Path, kills: list[Kill], must: Kill | None) -> int:
    died: list[Kill] = []
    for kill in [*kills, None]:
        status = await learner.live(config, kill, log)
        if status == 0:
            break
        if status != KILLED or kill is None:
            cause = (await asyncio.to_thread(log.read_text))[-2000:]
            raise ProcessFailed(f"the learner ended with status {status} after kills at {died}", cause=cause)
        died.append(kill)
    if must is not None and must not in died:
        raise ProcessFailed(f"the learner did not reach {must}; it was killed at {died}")
    return len(died) + 1


def _trajectory(coordinator: ScriptedCoordinator, run_folder: Path) -> Trajectory:
    records = [coordinator.announcements[version].record for version in sorted(coordinator.announcements)]
    checkpoints = Checkpoints(run_folder / "checkpoints", keep=2, read_only=True)

    def check(_host: HostState, saved: SavedArrays) -> None:
        read_arrays(saved, saved.like())

    restored = checkpoints.restore(check)
    assert restored is not None
    assert restored.host.step == STEPS
    return Trajectory(
        tuple((record.version, record.state_hash, record.parent_hash) for record in records),
        max(map(len, coordinator.contents.values())),
        tuple(map(tuple, restored.host.trained_ranges)),
        restored.digest,
    )


def _config(authority: Authority, folder: Path, port: int) -> dict[str, Any]:
    small = {"layers": 1, "width": 16, "query_heads": 2, "key_value_heads": 1, "head_size": 8}
    values = {
        "seed": 5,
        "audit": {"enabled": False},  # tokens of a script are not sampled from seeds
        "model": small | {"feed_forward_width": 16},
        "warm_start": {"batch_size": 8, "examples": 32, "accuracy_gate": 1.0, "steps_max": 2, "flawed_steps": 1},
        "checkpoint": {"every_steps": 2, "keep": 2},
        "publish": {"chunk_size_bytes": 4096, "keep_versions": 2, "squash_versions": 2, "timeout_s": 60.0},
        "identity_file": str(authority.learner_file),
        "invite": authority.invite(f"{LOOPBACK}:{port}"),
        "run_folder": str(folder / "run"),
        "compilation_cache": str(folder.parent / "compilation-cache"),
    }
    LearnerConfig.model_validate(values)
    return values


class Learner:
    """The process that forks one child for each life of the learner."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def live(self, config: dict[str, Any], kill: Kill | None, log: Path) -> int:
        """Run one life, and return its exit status."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = {"config": config, "kill_point": str(kill or ""), "log": str(log)}
        self._process.stdin.write(json.dumps(asked).encode() + b"\n")
        async with asyncio.timeout(LIFE_TIMEOUT_S):
            return int(await self._process.stdout.readline())


@contextlib.asynccontextmanager
async def lives_of() -> AsyncIterator[Learner]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "bench.durability.resume_learner",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield Learner(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(10.0):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
