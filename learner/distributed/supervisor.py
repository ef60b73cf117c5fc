"""Start one host's process of a distributed learner, and restart it when any process was lost.

A lost process ends all others too (learner/distributed/team.py). Each host's supervisor restarts its own; they connect
at the coordination service and resume from the newest checkpoint. Supervisors do not talk to each other.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from random import Random, SystemRandom

import structlog

from learner.config import DistributedConfig
from rollcast.runtime.errors import ProcessFailed, WaitTimedOut
from rollcast.runtime.install import module_command
from rollcast.runtime.process import EXIT_INTERRUPTED
from rollcast.runtime.waits import backoff_delays_s

WORKER = "ROLLCAST_LEARNER_WORKER"
"""Name of the variable in the environment of a process that a supervisor started."""

#: Exit statuses of a process that lost another one, or whose wait for it timed out.
LOST = (ProcessFailed.exit_code, WaitTimedOut.exit_code)
_HOUR_S = 3600.0

_log = structlog.get_logger()


def is_worker(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether this process was started by a supervisor."""
    return environment.get(WORKER) == "1"


class Restarts:
    """Decide whether a process is restarted, and when. The time is an argument.

    Args:
        most: most restarts within an hour.
        delays_s: endless delays in seconds, one before each restart.
    """

    def __init__(self, most: int, delays_s: Iterator[float]) -> None:
        self._most = most
        self._delays_s = delays_s
        self._times_s: list[float] = []

    def after(self, status: int, now_s: float) -> float | None:
        """Return the seconds to wait before a restart after this exit status; None: do not restart."""
        self._times_s = [at_s for at_s in self._times_s if now_s - at_s < _HOUR_S]
        if not was_lost(status) or len(self._times_s) >= self._most:
            return None
        self._times_s.append(now_s)
        return next(self._delays_s)


def was_lost(status: int) -> bool:
    """Return whether a restart may help after this exit status; below 0 it is the number of a signal."""
    return status < 0 or status in LOST


async def supervise(
    config: DistributedConfig,
    stop: asyncio.Event,
    *,
    command: Sequence[str] | None = None,
    random: Random | None = None,
) -> int:
    """Run the worker, restarting it after losses, and return its last exit status.

    Args:
        command: the worker's command; None: the command of this process.

    Raises:
        ProcessFailed: it was lost more often than restarts_per_hour allows.
    """
    own = command or [*module_command("rollcast.cli.main"), *sys.argv[1:]]
    restarts = Restarts(config.restarts_per_hour, backoff_delays_s(random or SystemRandom(), first_s=1.0, most_s=30.0))
    while True:
        worker = await asyncio.create_subprocess_exec(*own, env=os.environ | {WORKER: "1"})
        status = await _until_ended(worker, stop, config.stop_timeout_s)
        if stop.is_set():
            return status if status >= 0 else EXIT_INTERRUPTED
        delay_s = restarts.after(status, time.monotonic())
        if delay_s is None:
            if not was_lost(status):
                return status
            raise ProcessFailed(
                f"the learner's process {config.process_id} was lost {config.restarts_per_hour + 1} times in an hour",
                cause=f"its last exit status is {status}",
                fix="read its log, and check that all hosts of the learner are up and reach each other",
            )
        _log.warning("a learner process was lost; restarting it", exit_status=status, in_s=round(delay_s, 1))
        with_stop = asyncio.create_task(stop.wait())
        await asyncio.wait({with_stop}, timeout=delay_s)
        with_stop.cancel()
        if stop.is_set():
            return EXIT_INTERRUPTED


async def _until_ended(worker: asyncio.subprocess.Process, stop: asyncio.Event, stop_timeout_s: float) -> int:
    """Return the worker's exit status. Once ``stop`` is set it gets SIGTERM, and SIGKILL after ``stop_timeout_s``."""
    ended, stopped = asyncio.create_task(worker.wait()), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            worker.terminate()
            await asyncio.wait({ended}, timeout=stop_timeout_s)
            if not ended.done():
                _log.warning("the learner's process did not stop in time; killing it", seconds=stop_timeout_s)
                worker.kill()
        return await ended
    finally:
        stopped.cancel()
        if worker.returncode is None:
            worker.kill()
