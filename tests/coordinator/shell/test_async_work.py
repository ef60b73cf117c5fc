"""Test work next to the event loop, and calls that wait for the core."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.core.events.actions import AnswerUpload, ServeBatch
from coordinator.core.events.events import BatchRequested, Event, LearnerCalled, RolloutReceived, Tick
from coordinator.shell.async_work import AsyncWork
from coordinator.shell.pending_calls import PendingCalls
from rollcast.runtime.errors import StoreError
from rollcast.wire.ids import LeaseId, PeerId, Step, UploadId
from tests.coordinator.stored_work import rollout


class Shell:
    def __init__(self) -> None:
        self.told: list[Event] = []
        self.failures: list[Exception] = []
        self.over = False
        self.work = AsyncWork(self.told.append, self.failures.append, lambda: self.over)


async def test_an_event_follows_a_change_that_is_kept() -> None:
    shell, change = Shell(), asyncio.get_running_loop().create_future()
    shell.work.when_durable(change, Tick())
    assert shell.told == []
    change.set_result(None)
    await asyncio.sleep(0)
    assert shell.told == [Tick()]


async def test_events_of_changes_that_are_made_together_follow_in_their_order() -> None:
    shell, change = Shell(), asyncio.get_running_loop().create_future()
    for event in (Tick(), None, LearnerCalled()):
        shell.work.when_durable(change, event)
    change.set_result(None)
    await asyncio.sleep(0)
    assert shell.told == [Tick(), LearnerCalled()]
    shell.work.when_durable(change, Tick())
    await asyncio.sleep(0)
    assert shell.told == [Tick(), LearnerCalled(), Tick()]


async def test_a_change_that_is_refused_ends_the_run() -> None:
    shell, change = Shell(), asyncio.get_running_loop().create_future()
    shell.work.when_durable(change, Tick())
    change.set_exception(StoreError("the disk is full"))
    await asyncio.sleep(0)
    assert shell.told == []
    assert [str(error) for error in shell.failures] == [str(StoreError("the disk is full"))]


async def test_cancelled_wait_does_not_undo_the_change() -> None:
    shell, change = Shell(), asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(shell.work.durable(change, "a change"))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not change.cancelled()
    change.set_result(None)


async def test_failed_work_ends_a_running_run() -> None:
    async def fails() -> None:
        raise ValueError("a bug")

    for over, count in ((False, 1), (True, 0)):
        shell = Shell()
        shell.over = over
        shell.work.start(fails())
        await asyncio.sleep(0.01)
        assert len(shell.failures) == count


async def test_close_cancels_tasks_in_progress() -> None:
    shell, ended = Shell(), []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    shell.work.start(waits())
    await asyncio.sleep(0)
    await shell.work.close()
    assert ended == [True]
    assert shell.failures == []


def made() -> tuple[PendingCalls, list[Event]]:
    told: list[Event] = []
    return PendingCalls(told.append, told.append, lambda: 0.0, lambda seconds: None), told


async def begun(calls: PendingCalls, step: int, wait_s: float) -> asyncio.Task[ServeBatch | None]:
    task = asyncio.create_task(calls.batch(Step(step), wait_s))
    await asyncio.sleep(0)
    return task


@pytest.mark.asyncio
async def test_an_upload_waits_for_its_own_answer() -> None:
    calls, told = made()
    first: list[AnswerUpload] = []
    second: list[AnswerUpload] = []
    for answers in (first, second):
        calls.upload(lambda upload_id: RolloutReceived(upload_id, PeerId("a"), rollout(1)), answers.append)
    assert len(told) == 2
    answer = AnswerUpload(UploadId(2), LeaseId(1), 0, True, "")
    calls.answer(answer)
    calls.answer(answer)  # an upload is answered once
    assert (first, second) == ([], [answer])
    calls.answer(AnswerUpload(UploadId(99), LeaseId(1), 0, True, ""))  # no call waits for it any more


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
