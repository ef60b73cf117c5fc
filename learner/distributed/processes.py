"""Run one process of a distributed learner: process 0 leads and runs the learner, the others follow its orders."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import jax
import structlog

from learner.config import DistributedConfig, LearnerConfig, OptimiserConfig
from learner.distributed.jax_internals import coordination_store, launchers
from learner.distributed.launchers import placed_by_launcher
from learner.distributed.leader import Follower, LeadTrainer
from learner.distributed.supervisor import is_worker, supervise
from learner.distributed.team import Team, lost
from learner.training.trainer import Trainer
from rollcast.policy.compilation import use_compilation_cache, use_matmul_precision, use_repeatable_operations
from rollcast.policy.config import ModelConfig
from rollcast.runtime.errors import ProcessFailed, RollcastError
from rollcast.runtime.process import EXIT_INTERRUPTED, die_with_parent

PORT = "JAX_COORDINATOR_PORT"
"""jax's name of the variable that holds the port of process 0 if the launcher's choice does not suit."""

_STOP_POLL_S = 1.0
_END_TIMEOUT_S = 20.0  # seconds for jax's orderly shutdown of all processes; after that they exit without it


class TrainerOf(Protocol):
    """Builds the trainer of a model, with another optimiser than the configuration's if one is given."""

    def __call__(self, model: ModelConfig, optimiser: OptimiserConfig | None = None, /) -> Trainer: ...


Life = Callable[[TrainerOf], Awaitable[int]]

_log = structlog.get_logger()


async def run_processes(config: LearnerConfig, stop: asyncio.Event, life: Life) -> int:
    """Run this host's part of the learner and return the exit status.

    Args:
        life: runs a whole learner, given a function that builds its trainer; only the leader calls it.

    Raises:
        RollcastError: something failed that a person can act on.
    """
    use_matmul_precision(config.matmul_precision, config.model.carrier_dtype)
    if config.deterministic:
        use_repeatable_operations()
    config = await asyncio.to_thread(placed_by_launcher, config, launchers(), os.environ.get(PORT))
    if config.distributed.processes == 1:
        return await life(lambda model, optimiser=None: Trainer(model, _with(config, optimiser)))
    if not is_worker():
        return await supervise(config.distributed, stop)
    die_with_parent()
    await _work(config, stop, life)
    raise AssertionError("a worker ends in _work")


def join(settings: DistributedConfig) -> Team:
    """Connect to the other processes. It must be the first use of jax in this process.

    Raises:
        ProcessFailed: not all processes connected in time.
    """
    lost_after_s = int(settings.lost_after_s)
    try:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.config.update("jax_enable_preemption_service", False)  # it would install its own handler of SIGTERM
        _log.info(
            "waiting for the learner processes",
            processes=settings.processes,
            process_id=settings.process_id,
            coordinator_address=settings.coordinator_address,
            seconds_max=settings.join_timeout_s,
        )
        jax.distributed.initialize(
            settings.coordinator_address,
            settings.processes,
            settings.process_id,
            # Under Slurm and Open MPI jax would otherwise use one GPU of each host only, that of the local rank.
            cluster_detection_method="deactivate",
            initialization_timeout=max(1, int(settings.join_timeout_s)),
            heartbeat_timeout_seconds=lost_after_s,
            shutdown_timeout_seconds=lost_after_s,
        )
        # At the first use jax exchanges the devices of all processes, which blocks until each of them takes part: so
        # all of them do it here.
        jax.devices()
    except RuntimeError as error:
        raise ProcessFailed(
            f"the {settings.processes} learner processes did not connect at {settings.coordinator_address} within "
            f"{settings.join_timeout_s:g} s",
            cause=str(error)[:300],
            fix="start all of them with the same distributed.coordinator_address, which is on process 0's host",
        ) from None
    return Team(coordination_store(), settings.join_timeout_s, settings.operation_timeout_s, _end_late)


async def _work(config: LearnerConfig, stop: asyncio.Event, life: Life) -> None:
    """Connect, lead or follow, and end the process at once: a clean exit of jax would wait for lost processes."""
    status = ProcessFailed.exit_code
    try:
        worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="team")
        settings = config.distributed
        use_compilation_cache(config.compilation_cache)
        team = await asyncio.get_running_loop().run_in_executor(worker, join, settings)
        _log.info("learner processes connected", processes=settings.processes, process_id=settings.process_id)
        status = await (_lead(config, team, stop, life) if settings.process_id == 0 else _follow(config, team, stop))
    except RollcastError as error:
        status = error.exit_code
        print(error, file=sys.stderr)
    except RuntimeError as error:  # jax's: a collective broke
        print(lost(error, "a computation of all of them"), file=sys.stderr)
    except BaseException as error:
        _log.exception("the learner's process failed", error=str(error)[:300])
    finally:
        _end_process(status)


async def _lead(config: LearnerConfig, team: Team, stop: asyncio.Event, life: Life) -> int:
    trainers: list[LeadTrainer] = []

    def make(model: ModelConfig, optimiser: OptimiserConfig | None = None, /) -> Trainer:
        trainers.append(LeadTrainer(model, _with(config, optimiser), team))
        return trainers[0]

    watcher = asyncio.create_task(_stop_when_asked(team, stop), name="stop with the other processes")
    try:
        status = await life(make)
    finally:
        watcher.cancel()
    if trainers:
        await asyncio.to_thread(trainers[0].end, status)
    return status


def _with(config: LearnerConfig, optimiser: OptimiserConfig | None) -> LearnerConfig:
    return config if optimiser is None else config.model_copy(update={"optimiser": optimiser})


async def _stop_when_asked(team: Team, stop: asyncio.Event) -> None:
    while not stop.is_set():
        await asyncio.sleep(_STOP_POLL_S)
        with contextlib.suppress(ProcessFailed):  # the computation in flight fails too, and reports it
            if await asyncio.to_thread(team.asked_to_stop):
                stop.set()


async def _follow(config: LearnerConfig, team: Team, stop: asyncio.Event) -> int:
    follower = Follower(config, team)
    following = asyncio.get_running_loop().run_in_executor(None, follower.follow)
    stopped = asyncio.create_task(stop.wait())
    try:
        waiting: set[asyncio.Future[Any]] = {following, stopped}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if not following.done():
            await asyncio.to_thread(team.ask_to_stop)
        return await following
    finally:
        stopped.cancel()


def _end_late(error: ProcessFailed) -> None:
    print(error, file=sys.stderr, flush=True)
    os._exit(error.exit_code)


def _end_process(status: int) -> None:
    """Shut jax down in order after a normal end, within _END_TIMEOUT_S, and exit in any case."""
    if status in (0, EXIT_INTERRUPTED):
        threading.Thread(target=_say_goodbye, daemon=True, name="goodbye").start()
        _gone.wait(_END_TIMEOUT_S)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


_gone = threading.Event()


def _say_goodbye() -> None:
    try:
        jax.distributed.shutdown()
    finally:
        _gone.set()
