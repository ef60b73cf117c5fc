"""Score completions in a bounded, restartable pool of verifier processes (protocol: coordinator/verifiers/worker.py).

A process works through its items in order, so when it hangs or dies, the pool can tell which item it was busy with.
That item fails, the process is replaced, and the other items of its batch are scored by the new process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import structlog

from coordinator.verifiers.jobs import BATCH_ITEMS, Job, QueueScorer
from coordinator.verifiers.process import VerifierProcess
from coordinator.verifiers.scorer import Failed
from coordinator.workers.line_process import WorkerDied, WorkerHung
from rollcast.runtime.errors import TaskError
from rollcast.runtime.install import module_command
from rollcast.runtime.waits import backoff_delays_s

WORKER_COMMAND = module_command("coordinator.verifiers.worker")
STARTS_MAX = 5  # starts in a row without a score, after which the pool gives up
RESTART_FIRST_DELAY_S = 0.05
RESTART_MOST_DELAY_S = 5.0

_log = structlog.get_logger()


class VerifierPool(QueueScorer):
    """A Scorer whose workers are processes of this machine.

    Args:
        task_config_json: the task, as coordinator.tasks.build.task_config_to_json writes it.
        seed: the task's seed.
        processes: the number of processes.
        timeout_s: deadline of an item; one that takes longer fails with ``timeout``, and its process is replaced.
        queue_max: items that may wait; ``score`` waits while the queue is full.
        command: the worker's command line.
        batch_items: items that a process gets at once.
        tokenizer_folder: the folder of a published tokenizer, with which the processes decode token ids; None: they
            decode none.
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
        batch_items: int = BATCH_ITEMS,
        tokenizer_folder: Path | None = None,
    ) -> None:
        super().__init__(queue_max, batch_items, decodes=tokenizer_folder is not None)
        made_of = (command, task_config_json, seed, timeout_s, tokenizer_folder)
        self._processes = [VerifierProcess(*made_of) for _ in range(processes)]
        self._timeout_s = timeout_s
        self._random = Random()

    def decode_by(self, tokenizer_json: str) -> None:
        """See Scorer."""
        if not self.decodes:
            self.decodes = True
            for process in self._processes:
                process.tokenizer_json = tokenizer_json

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
        self._serve_with(map(self._serve, self._processes))

    async def close(self) -> None:
        """Stop every process; items without a verdict raise TaskError."""
        await self._end_lanes()
        await self._kill_all()

    async def _kill_all(self) -> None:
        await asyncio.gather(*(process.kill() for process in self._processes))

    async def _serve(self, process: VerifierProcess) -> None:
        """Serve items with one process, which is replaced when it dies.

        Raises:
            TaskError: processes do not start any more, or die before they score.
        """
        delays, barren = self._new_delays(), 0
        while True:
            jobs = await self._jobs.next_batch()
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

    def _new_delays(self) -> Iterator[float]:
        return backoff_delays_s(self._random, first_s=RESTART_FIRST_DELAY_S, most_s=RESTART_MOST_DELAY_S)

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

    async def _work(self, process: VerifierProcess, jobs: list[Job]) -> list[Job]:
        """Score the jobs in order; return those that a new process must score."""
        try:
            await process.send_batch([job.item for job in jobs])
        except WorkerDied as death:
            await self._bury(process, death)
            return jobs
        at_once = len(jobs) if process.together else 1
        for done, job in enumerate(jobs):
            try:
                items, is_last = at_once if not done else 1, done + 1 == len(jobs)
                job.finish(await process.result(job.item.key, items, is_last=is_last))
            except (WorkerHung, WorkerDied) as death:
                await self._bury(process, death)
                busy_with = jobs[done : done + at_once]
                for one in busy_with:
                    self._jobs.score_alone(one.item.key)
                    one.finish(self._failed(one.item.key, process, death))
                return jobs[done + len(busy_with) :]
        return []

    def _failed(self, key: str, process: VerifierProcess, death: WorkerHung | WorkerDied) -> Failed:
        if isinstance(death, WorkerHung):
            return Failed(key, "timeout", f"no verdict within {self._timeout_s:g} s")
        return Failed(key, "crash", process.stderr_end or str(death))

    async def _bury(self, process: VerifierProcess, death: Exception) -> None:
        await process.kill()
        _log.warning("verifier replaced", why=str(death), last_words=process.stderr_end)
