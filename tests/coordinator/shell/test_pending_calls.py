from __future__ import annotations

import asyncio

import pytest

from coordinator.core.events.actions import AnswerUpload, ServeBatch
from coordinator.core.events.events import BatchRequested, Event, RolloutReceived
from coordinator.shell.pending_calls import PendingCalls
from rollcast.wire.ids import LeaseId, PeerId, Step, UploadId
from tests.coordinator.stored_work import rollout


def made() -> tuple[PendingCalls, list[Event]]:
    told: list[Event] = []
    return PendingCalls(told.append, lambda: 0.0, lambda seconds: None), told


async def begun(calls: PendingCalls, step: int, wait_s: float) -> asyncio.Task[ServeBatch | None]:
    task = asyncio.create_task(calls.batch(Step(step), wait_s))
    await asyncio.sleep(0)
    return task


@pytest.mark.asyncio
async def test_an_upload_waits_for_its_own_answer() -> None:
    calls, told = made()
    first, second = (
        calls.upload(lambda upload_id: RolloutReceived(upload_id, PeerId("a"), rollout(1))) for _ in range(2)
    )
    assert len(told) == 2
    answer = AnswerUpload(UploadId(2), LeaseId(1), 0, True, "")
    calls.answer(answer)
    assert await second == answer
    assert not first.done()
    calls.answer(AnswerUpload(UploadId(99), LeaseId(1), 0, True, ""))  # nobody waits for it any more


@pytest.mark.asyncio
async def test_a_learner_that_calls_again_is_answered_when_its_first_call_is_broken_off() -> None:
    calls, told = made()
    first, again = await begun(calls, 3, 60.0), await begun(calls, 3, 60.0)
    assert told == [BatchRequested(Step(3))] * 2
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    calls.answer(ServeBatch(Step(3), replayed=False))
    assert await again == ServeBatch(Step(3), replayed=False)


@pytest.mark.asyncio
async def test_a_batch_that_does_not_come_in_time_is_none() -> None:
    calls, _ = made()
    assert await calls.batch(Step(3), 0.0) is None
    calls.answer(ServeBatch(Step(3), replayed=False))
