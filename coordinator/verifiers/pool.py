"""Score completions in a bounded, restartable pool of verifier processes (protocol: coordinator/verifiers/worker.py).

A process works through its items in order, so when it hangs or dies, the pool can tell which item is the cause. An
item that hangs scores 0. An item during which the process died is retried once, then scores 0; the other items of its
batch are not affected.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import structlog

from coordinator.tasks.checks.task import Problem
from coordinator.verifiers.line_process import WorkerDied, WorkerHung
from coordinator.verifiers.process import VerifierProcess
from rollcast.runtime.errors import RollcastError, TaskError
from rollcast.runtime.waits import backoff_delays_s

WORKER_COMMAND = (sys.executable, "-P", "-m", "coordinator.verifiers.worker")
BATCH_ITEMS = 16  # items on one line: few enough to share work between processes, enough to make lines cheap
BATCH_TEXT_LENGTH_MAX = 1 << 20
COMPLETION_LENGTH_MAX = 1 << 20  # characters; longer completions score 0 without being read
CRASHES_MAX = 2  # crashes during one item, after which it scores 0
STARTS_MAX = 5  # starts in a row without a score, after which the pool gives up
RESTART_FIRST_DELAY_S = 0.05
RESTART_MOST_DELAY_S = 5.0

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class VerifyItem:
    """A completion to score. ``key`` is the caller's, and is returned with the verdict."""

    key: int
    problem: Problem
    completion_text: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The score of a completion. ``error`` is the reason if there is none (the reward is then 0), else empty."""

    key: int
    reward: float
    exact: bool
    error: str = ""


@dataclass(slots=True)
class _Job:
    item: VerifyItem
    future: asyncio.Future[Verdict]
    crashes: int = 0

    def finish(self, reward: float, exact: bool, error: str) -> None:
        if not self.future.done():
            self.future.set_result(Verdict(self.item.key, reward, exact, error))


class VerifierPool:
    """Scores completions in separate processes.

    Args:
        task_config_json: the task, as coordinator.tasks.build.task_config_to_json writes it.
        seed: the task's seed.
        processes: the number of processes.
        timeout_s: an item that takes longer scores 0 with the error ``timeout``, and its process is replaced.
        queue_max: items that may wait; ``score`` waits while the queue is full.
        command: the worker's command line.
    """

    def __init__(
        self,
        task_config_json: str,
        seed: int,
        processes: int,
        timeout_s: float,
        queue_max: int,
        *,
        command: Sequence[str] = WORKER_COMMAND,
    ) -> None:
        self._processes = [VerifierProcess(command, task_config_json, seed, timeout_s) for _ in range(processes)]
        self._queue: asyncio.Queue[_Job] = asyncio.Queue(queue_max)
        self._random = Random()
        self._lanes: list[asyncio.Task[None]] = []
        self._unfinished: set[asyncio.Future[Verdict]] = set()
        self._failure: RollcastError | None = None

    @property
    def pids(self) -> list[int]:
        """Return the process ids of the running processes."""
        return [process.pid for process in self._processes if process.pid is not None]

    async def start(self) -> None:
        """Start every process and wait until each has loaded its task.

        Raises:
            TaskError: the task is wrong, or a process does not start; the message has the end of its stderr.
        """
        starts = await asyncio.gather(*(process.start() for process in self._processes), return_exceptions=True)
        for problem in starts:
            if isinstance(problem, BaseException):
                await self._kill_all()
                raise problem
        self._lanes = [asyncio.create_task(self._serve(process), name="verifier") for process in self._processes]

    async def score(self, item: VerifyItem) -> Verdict:
        """Return the item's verdict; waits while the queue is full, and for its turn.

        Raises:
            TaskError: the pool is closed, or its processes no longer start.
        """
        job = self._admit(item)
        if not self._queue.full():
            self._queue.put_nowait(job)
            return await job.future
        putting: asyncio.Future[Any] = asyncio.ensure_future(self._queue.put(job))
        try:
            await asyncio.wait({putting, job.future}, return_when=asyncio.FIRST_COMPLETED)
            return await job.future
        finally:
            putting.cancel()

    async def close(self) -> None:
        """Stop every process; items that are not scored yet fail with TaskError."""
        for lane in self._lanes:
            lane.cancel()
        await asyncio.gather(*self._lanes, return_exceptions=True)
        await self._kill_all()
        self._fail(TaskError("the verifier pool is closed"))

    def _admit(self, item: VerifyItem) -> _Job:
        if self._failure is not None:
            raise self._failure
        future: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        job = _Job(item, future)
        if len(item.completion_text) > COMPLETION_LENGTH_MAX:
            job.finish(0.0, False, "the completion is too long")
        self._unfinished.add(future)
        future.add_done_callback(self._discard)
        return job

    def _discard(self, future: asyncio.Future[Verdict]) -> None:
        self._unfinished.discard(future)
        if not future.cancelled():
            future.exception()  # marks the exception as retrieved, also when no caller waits any more

    def _fail(self, failure: RollcastError) -> None:
        """Fail every item now and later with this error; the first error counts."""
        self._failure = self._failure or failure
        for future in list(self._unfinished):
            if not future.done():
                future.set_exception(self._failure)

    async def _kill_all(self) -> None:
        await asyncio.gather(*(process.kill() for process in self._processes))

    async def _serve(self, process: VerifierProcess) -> None:
        """Serve items with one process, which is replaced when it dies."""
        delays, barren = self._new_delays(), 0
        try:
            while True:
                jobs = await self._next_jobs()
                while jobs:
                    if not process.alive:
                        await self._restart(process, delays)
                    before = len(jobs)
                    jobs = await self._work(process, jobs)
                    barren = barren + 1 if len(jobs) == before else 0
                    if barren == STARTS_MAX:
                        raise TaskError("verifier processes die before they score", cause=process.stderr_end)
                    if process.alive:
                        delays = self._new_delays()
        except RollcastError as error:
            _log.error("verifier pool failed", error=str(error))
            self._fail(error)

    def _new_delays(self) -> Iterator[float]:
        return backoff_delays_s(self._random, first_s=RESTART_FIRST_DELAY_S, most_s=RESTART_MOST_DELAY_S)

    async def _next_jobs(self) -> list[_Job]:
        """Return at least one item, and as many more as wait and fit into a batch."""
        jobs = [await self._queue.get()]
        length = len(jobs[0].item.completion_text)
        while len(jobs) < BATCH_ITEMS and length < BATCH_TEXT_LENGTH_MAX and not self._queue.empty():
            jobs.append(self._queue.get_nowait())
            length += len(jobs[-1].item.completion_text)
        return [job for job in jobs if not job.future.done()]

    async def _restart(self, process: VerifierProcess, delays: Iterator[float]) -> None:
        for attempt in range(1, STARTS_MAX + 1):
            await asyncio.sleep(next(delays))
            try:
                await process.start()
            except TaskError as error:
                _log.warning("verifier did not start", attempt=attempt, error=str(error))
                if attempt == STARTS_MAX:
                    raise
            else:
                return

    async def _work(self, process: VerifierProcess, jobs: list[_Job]) -> list[_Job]:
        """Score the jobs in order; return those that a new process must score."""
        try:
            await process.send_batch([(job.item.problem.to_json(), job.item.completion_text) for job in jobs])
        except WorkerDied as death:
            await self._bury(process, death)
            return jobs
        for done, job in enumerate(jobs):
            try:
                job.finish(*await process.result())
            except WorkerHung as death:
                job.finish(0.0, False, "timeout")
                await self._bury(process, death)
                return jobs[done + 1 :]
            except WorkerDied as death:
                job.crashes += 1
                await self._bury(process, death)
                if job.crashes < CRASHES_MAX:
                    return jobs[done:]
                job.finish(0.0, False, "the verifier crashed")
                return jobs[done + 1 :]
        return []

    async def _bury(self, process: VerifierProcess, death: Exception) -> None:
        await process.kill()
        _log.warning("verifier replaced", why=str(death), last_words=process.stderr_end)
