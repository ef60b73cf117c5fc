"""Queue items for workers: bounded, one job for each key, failed together when the scorer fails.

The scorers of both pools are QueueScorers, which differ in what serves the queue.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from coordinator.verifiers.scorer import (
    COMPLETION_LENGTH_MAX,
    TOO_LONG,
    Scored,
    ScoreItem,
    Verdict,
)
from rollcast.runtime.background import or_fail
from rollcast.runtime.errors import ProcessFailed, RollcastError, TaskError

BATCH_ITEMS = 16
"""Items that a worker gets at once: few enough to share work between workers, enough to make messages cheap."""
BATCH_TEXT_LENGTH_MAX = 1 << 20
GATHER_S = 0.03
"""Seconds for which a batch waits for further items: a message for each would cost more than most checks."""
ALONE_MAX = 4096  # keys that are remembered as those of items that may have ended a worker


_log = structlog.get_logger()


@dataclass(slots=True)
class Job:
    """An item on its way through a scorer, with the future of its verdict."""

    item: ScoreItem
    future: asyncio.Future[Verdict]
    is_over: Callable[[Job], None]  # called when it has its verdict, without a further turn of the loop
    callers: int = 0  # that wait for the verdict; the job is given up with the last one

    def finish(self, verdict: Verdict) -> None:
        """Set the verdict, unless it has one."""
        if not self.future.done():
            self.future.set_result(verdict)
            self.is_over(self)


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
        self._gathering = asyncio.Lock()  # one idle worker gathers a batch, where each would take one job

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
        job = self._job(item)
        try:
            return await asyncio.shield(job.future)
        finally:
            job.callers -= 1
            if not job.callers and job.future.cancel():  # which has no effect on a job that has its verdict
                self._discard(job)

    def submit(self, item: ScoreItem) -> asyncio.Future[Verdict]:
        """Return the verdict's future, which its caller must not cancel: the item is scored in any case."""
        return self._job(item).future

    def _job(self, item: ScoreItem) -> Job:
        """Return the job of an item, with one caller more."""
        job = self._unfinished.get(item.key)
        if job is None or job.future.done():
            job = self._new_job(item)
        job.callers += 1
        return job

    def _new_job(self, item: ScoreItem) -> Job:
        """Return a job in the queue, on its way there while the queue is full, or done if it needs no worker."""
        job = Job(item, asyncio.get_running_loop().create_future(), self._discard)
        if self._failure is not None:
            job.future.set_exception(self._failure)
            return job
        if len(item.completion_text) > COMPLETION_LENGTH_MAX:
            job.finish(Scored(item.key, TOO_LONG))
            return job
        self._unfinished[item.key] = job
        if not self._queue.full():
            self._queue.put_nowait(job)
        else:
            putting = asyncio.ensure_future(self._queue.put(job))
            job.future.add_done_callback(lambda _: putting.cancel())
        return job

    def _discard(self, job: Job) -> None:
        if self._unfinished.get(job.item.key) is job:
            del self._unfinished[job.item.key]

    async def next_batch(self) -> list[Job]:
        """Return at least one job, and as many more as come and fit into a batch; without those that are done."""
        async with self._gathering:
            return await self._gathered()

    async def _gathered(self) -> list[Job]:
        jobs = [await self._queue.get()]
        length = jobs[0].item.length
        if self._batch_items > 1 and self._queue.qsize() < self._batch_items - 1:
            await asyncio.sleep(GATHER_S)
        if jobs[0].item.key in self._alone:
            return [job for job in jobs if not job.future.done()]
        while len(jobs) < self._batch_items and length < BATCH_TEXT_LENGTH_MAX and not self._queue.empty():
            job = self._queue.get_nowait()
            if job.item.key in self._alone:
                self._queue.put_nowait(job)
                break
            jobs.append(job)
            length += job.item.length
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
                job.future.exception()  # marks it as retrieved, also when no caller waits any more
                self._discard(job)


class QueueScorer:
    """The part of a Scorer that callers see: items wait in a queue, which lanes serve.

    Args:
        waiting_max, batch_items: see JobQueue.
        decodes: whether its workers decode token ids.
    """

    def __init__(self, waiting_max: int, batch_items: int, *, decodes: bool = False) -> None:
        self.decodes = decodes
        self._jobs = JobQueue(waiting_max, batch_items)
        self._lanes: list[asyncio.Task[None]] = []

    async def score(self, items: Sequence[ScoreItem]) -> list[Verdict]:
        """Return the verdicts of the items, in their order; see Scorer.score."""
        return await self._jobs.score(items)

    def submit(self, item: ScoreItem) -> asyncio.Future[Verdict]:
        """Score one item; see Scorer.submit."""
        return self._jobs.submit(item)

    def _serve_with(self, lanes: Iterable[Coroutine[Any, Any, None]]) -> None:
        """Begin to serve the queue with these lanes."""
        self._lanes = [asyncio.create_task(or_fail(lane, self._lane_failed), name="verifier") for lane in lanes]

    def _lane_failed(self, error: Exception) -> None:
        """Fail all items: those that the lane had taken would wait for ever."""
        if not isinstance(error, RollcastError):
            _log.error("verifier pool failed", exc_info=error)
            error = ProcessFailed("the verifier pool failed", cause=repr(error), fix="see the log, and report this bug")
        else:
            _log.error("verifier pool failed", error=str(error))
        self._jobs.fail(error)

    async def _end_lanes(self) -> None:
        """Stop the lanes; items without a verdict raise TaskError, as new ones do."""
        for lane in self._lanes:
            lane.cancel()
        await asyncio.gather(*self._lanes, return_exceptions=True)
        self._jobs.fail(TaskError("the verifier pool is closed"))
