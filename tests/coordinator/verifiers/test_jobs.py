"""Test the queue that both verifier pools share."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.tasks.checks.task import Problem, Score
from coordinator.verifiers.jobs import JobQueue, QueueScorer
from coordinator.verifiers.scorer import Scored, ScoreItem
from rollcast.runtime.errors import ProcessFailed, TaskError

ITEM = ScoreItem("a", Problem("sum:0", "1+1=", "2", {}), "2")
RIGHT = Scored("a", Score(1.0, True))


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("waiting_max", [1, 0], ids=["in the queue", "on its way there"])
async def test_the_caller_that_asked_first_may_be_cancelled_without_harm_to_others(waiting_max: int) -> None:
    jobs = JobQueue(waiting_max or 1)
    if not waiting_max:
        other = asyncio.create_task(jobs.score([ScoreItem("b", ITEM.problem, "2")]))
        await settle()
    first, second = (asyncio.create_task(jobs.score([ITEM])) for _ in range(2))
    await settle()
    first.cancel()
    await settle()
    batch = await jobs.next_batch()
    if not waiting_max:
        batch += [] if len(batch) == 2 else await jobs.next_batch()
        other.cancel()
    (job,) = [one for one in batch if one.item is ITEM]
    job.finish(RIGHT)
    assert await second == [RIGHT]
    assert first.cancelled()


async def test_a_job_is_given_up_with_its_last_caller_and_may_be_asked_for_again() -> None:
    jobs = JobQueue(4)
    callers = [asyncio.create_task(jobs.score([ITEM])) for _ in range(2)]
    await settle()
    for one in callers:
        one.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    again = asyncio.create_task(jobs.score([ITEM]))
    await settle()
    (job,) = await jobs.next_batch()
    job.finish(RIGHT)
    assert await again == [RIGHT]


async def test_a_failed_queue_fails_items_now_and_later() -> None:
    jobs = JobQueue(4)
    waiting = asyncio.create_task(jobs.score([ITEM]))
    await settle()
    jobs.fail(TaskError("closed"))
    for one in (waiting, jobs.score([ITEM])):
        with pytest.raises(TaskError, match="closed"):
            await one


async def test_an_item_that_a_broken_lane_has_taken_does_not_wait_for_ever() -> None:
    class Broken(QueueScorer):
        def begin(self) -> None:
            self._serve_with([self._lane()])

        async def _lane(self) -> None:
            await self._jobs.next_batch()
            raise KeyError("a bug of ours")

    scorer = Broken(4, 1)
    scorer.begin()
    async with asyncio.timeout(10.0):
        with pytest.raises(ProcessFailed, match="a bug of ours"):
            await scorer.score([ITEM])
    await scorer._end_lanes()
