"""Score completions by actors of a Ray cluster, on the machines that the user has for it.

Each actor owns one verifier process of its machine (coordinator/verifiers/pool.py), so that deadlines, sandboxes and
verdicts are those of the local pool. An actor that dies, or a machine that is lost, fails the items that it had; they
are retried by another. Ray restarts actors where it has room. Items and verdicts cross as texts and numbers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random
from typing import Any

import structlog

from coordinator.tasks.checks.task import Problem
from coordinator.verifiers.jobs import Job, QueueScorer
from coordinator.verifiers.messages import read_verdict, verdict_message
from coordinator.verifiers.pool import VerifierPool
from coordinator.verifiers.scorer import Failed, ScoreItem
from rollcast.runtime.errors import TaskError
from rollcast.runtime.waits import backoff_delays_s
from rollcast.wire.text.data_files import optional_import

START_TIMEOUT_S = 300.0
"""For the cluster to place all actors, and for these to load the task: a machine may have to be started first."""
GRACE_S = 30.0
"""For an answer beyond its items' deadlines: the actor itself replaces a process that hangs."""
BATCHES_AT_ONCE = 2
"""Batches that an actor has at once: one is scored while the next one and the verdicts before cross the network."""
RETRY_FIRST_S = 0.5
RETRY_MOST_S = 30.0

_log = structlog.get_logger()


class RemoteWorker:
    """One verifier process behind an actor. Restarted by Ray, it starts its process again with the first batch."""

    def __init__(self, task_config_json: str, seed: int, timeout_s: float, batch_items: int) -> None:
        self._made_of = (task_config_json, seed, 1, timeout_s, 4 * batch_items)
        self._batch_items = batch_items
        self._pool: VerifierPool | None = None
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Start the process; do nothing if it runs."""
        async with self._starting:
            if self._pool is None:
                pool = VerifierPool(*self._made_of, batch_items=self._batch_items)
                await pool.start()
                self._pool = pool

    async def score(self, items: list[tuple[str, str, str]]) -> list[list[Any]]:
        """Return the messages of the verdicts on items of key, problem as JSON and completion."""
        await self.start()
        assert self._pool is not None
        read = [ScoreItem(key, Problem.from_json(problem), completion) for key, problem, completion in items]
        return [verdict_message(verdict) for verdict in await self._pool.score(read)]


class RayScorer(QueueScorer):
    """A Scorer whose workers are actors.

    Args:
        workers: number of actors, each of which reserves one CPU.
        address: of the cluster, as ray.init takes it: "auto", "HOST:PORT" or "ray://HOST:PORT".
        task_config_json, seed, timeout_s, queue_max, batch_items: see VerifierPool.
    """

    def __init__(
        self,
        task_config_json: str,
        seed: int,
        workers: int,
        timeout_s: float,
        queue_max: int,
        *,
        address: str,
        batch_items: int,
    ) -> None:
        super().__init__(queue_max, batch_items)
        self._made_of = (task_config_json, seed, timeout_s, batch_items)
        self._batch_items = batch_items
        self._workers, self._address, self._timeout_s = workers, address, timeout_s
        self._random = Random()
        self._ray: Any = None
        self._actors: list[Any] = []

    async def start(self) -> None:
        """Connect to the cluster, and start the actors; see Scorer.start."""
        self._ray = ray = optional_import("ray", 'verifier.pool = "ray" needs the package ray', "ray")
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await asyncio.to_thread(
                    ray.init,
                    address=self._address,
                    ignore_reinit_error=True,
                    log_to_driver=False,
                    logging_level="error",
                )
                actor = ray.remote(num_cpus=1, max_restarts=-1, max_concurrency=BATCHES_AT_ONCE)(RemoteWorker)
                self._actors = [actor.remote(*self._made_of) for _ in range(self._workers)]
                await asyncio.gather(*(one.start.remote() for one in self._actors))
        except (ray.exceptions.RayError, ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
            await self.close()
            raise TaskError(
                f"the Ray cluster at {self._address} does not start {self._workers} verifiers",
                cause=_last_line(error) or f"not within {START_TIMEOUT_S:g} s",
                fix="install rollcast on its machines, correct verifier.ray_address, or lower verifier.processes",
            ) from None
        self._serve_with(self._serve(one) for one in self._actors for _ in range(BATCHES_AT_ONCE))

    def decode_by(self, tokenizer_json: str) -> None:
        """See Scorer. Its actors get text."""

    async def close(self) -> None:
        """Stop the actors, and leave the cluster as it is."""
        await self._end_lanes()
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors = []

    async def _serve(self, actor: Any) -> None:
        """Serve items with one actor; while it fails, others take what it would have taken."""
        delays = self._new_delays()
        while True:
            jobs = await self._jobs.next_batch()
            if not jobs:
                continue
            why = await self._work(actor, jobs)
            if why is None:
                delays = self._new_delays()
                continue
            _log.warning("ray verifier failed", why=why)
            for job in jobs:
                job.finish(Failed(job.item.key, "crash", f"a verifier of the Ray cluster was lost: {why}"))
            await asyncio.sleep(next(delays))

    async def _work(self, actor: Any, jobs: list[Job]) -> str | None:
        """Have an actor score jobs. Return why it did not; None if it did."""
        items = [(job.item.key, job.item.problem.to_json(), job.item.completion_text) for job in jobs]
        try:
            async with asyncio.timeout(BATCHES_AT_ONCE * self._batch_items * self._timeout_s + GRACE_S):
                messages = await actor.score.remote(items)
        except TimeoutError:
            return "it does not answer"
        except self._ray.exceptions.RayError as error:
            return _last_line(error)
        for job, message in zip(jobs, messages, strict=True):
            verdict = read_verdict(job.item.key, message)
            job.finish(verdict or Failed(job.item.key, "crash", "a verifier sent something that is no verdict"))
        return None

    def _new_delays(self) -> Iterator[float]:
        return backoff_delays_s(self._random, first_s=RETRY_FIRST_S, most_s=RETRY_MOST_S)


def _last_line(error: BaseException) -> str:
    return str(error).strip().rpartition("\n")[2][:500]
