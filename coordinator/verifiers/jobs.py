"""Queue items for workers: bounded, one job for each key, failed together when the scorer fails."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.tasks.checks.task import Score
from coordinator.verifiers.scorer import (
    COMPLETION_LENGTH_MAX,
    Scored,
    ScoreItem,
    Verdict,
)
from rollcast.runtime.errors import RollcastError

BATCH_ITEMS = 16
"""Items that a worker gets at once: few enough to share work between workers, enough to make messages cheap."""
BATCH_TEXT_LENGTH_MAX = 1 << 20
ALONE_MAX = 4096  # keys that are remembered as those of items that may have ended a worker


@dataclass(slots=True)
class Job:
    """An item on its way through a scorer, with the future of its verdict."""

    item: ScoreItem
    future: asyncio.Future[Verdict]

    def finish(self, verdict: Verdict) -> None:
        """Set the verdict, unless it has one."""
        if not self.future.done():
            self.future.set_result(verdict)


class JobQueue:
    """Jobs without a verdict. Items with a key that is already waiting share its job.

    Args:
        waiting_max: jobs that may wait for a worker; ``score`` waits while the queue is full.
        batch_items: jobs that a worker gets at once.
    """

    def __init__(self, waiting_max: int, batch_items: int = BATCH_ITEMS) -> None:
        self._batch_items = batch_items
        self._queue: asyncio.Queue[Job] = asyncio.Queue(waiting_max)
        self._unfinished: dict[str, Job] = {}
        self._alone: OrderedDict[str, None] = OrderedDict()
        self._failure: RollcastError | None = None

    @property
    def full(self) -> bool:
        """Whether the next item has to wait for a place."""
        return self._queue.full()

    async def score(self, items: Sequence[ScoreItem]) -> list[Verdict]:
        """Return the verdicts once workers gave them; see Scorer.score."""
        if len(items) == 1:
            return [await self._score_one(items[0])]
        return list(await asyncio.gather(*(self._score_one(item) for item in items)))

    async def _score_one(self, item: ScoreItem) -> Verdict:
        if self._failure is not None:
            raise self._failure
        if len(item.completion_text) > COMPLETION_LENGTH_MAX:
            return Scored(item.key, Score(0.0, False, "the completion is too long"))
        job = self._unfinished.get(item.key)
        if job is not None:
            return await asyncio.shield(job.future)
        job = self._unfinished[item.key] = Job(item, asyncio.get_running_loop().create_future())
        job.future.add_done_callback(lambda future: self._discard(item.key, future))
        if not self._queue.full():
            self._queue.put_nowait(job)
            return await job.future
        putting: asyncio.Future[Any] = asyncio.ensure_future(self._queue.put(job))
        try:
            await asyncio.wait({putting, job.future}, return_when=asyncio.FIRST_COMPLETED)
            return await job.future
        finally:
            putting.cancel()

    def _discard(self, key: str, future: asyncio.Future[Verdict]) -> None:
        del self._unfinished[key]
        if not future.cancelled():
            future.exception()  # marks the exception as retrieved, also when no caller waits any more

    async def next_batch(self) -> list[Job]:
        """Return at least one job, and as many more as wait and fit into a batch; without those that are done."""
        jobs = [await self._queue.get()]
        length = len(jobs[0].item.completion_text)
        if jobs[0].item.key in self._alone:
            return [job for job in jobs if not job.future.done()]
        while len(jobs) < self._batch_items and length < BATCH_TEXT_LENGTH_MAX and not self._queue.empty():
            job = self._queue.get_nowait()
            if job.item.key in self._alone:
                self._queue.put_nowait(job)
                break
            jobs.append(job)
            length += len(job.item.completion_text)
        return [job for job in jobs if not job.future.done()]

    def score_alone(self, key: str) -> None:
        """Have an item scored in a batch of its own from now on: it may be what ended a worker."""
        self._alone[key] = None
        while len(self._alone) > ALONE_MAX:
            self._alone.popitem(last=False)

    def fail(self, failure: RollcastError) -> None:
        """Fail every item now and later with this error; the first error counts."""
        self._failure = self._failure or failure
        for job in list(self._unfinished.values()):
            if not job.future.done():
                job.future.set_exception(self._failure)
