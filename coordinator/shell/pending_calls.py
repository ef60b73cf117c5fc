"""Keep the calls of peers and the learner that wait for a decision of the core."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import TypeVar, assert_never

from coordinator.core.events.actions import AnswerEpoch, AnswerUpload, ServeBatch
from coordinator.core.events.events import BatchRequested, EpochRequested, Event
from rollcast.runtime.waits import deadline
from rollcast.wire.ids import Step, UploadId, Version

EPOCH_DEADLINE_S = 60.0

ActionT = TypeVar("ActionT")
Answered = Callable[[AnswerUpload], None]
"""Receives the answer to an upload, within the call that leads to it: an upload has no future of its own."""


class PendingCalls:
    """The calls that wait, by their ids in the core."""

    def __init__(
        self,
        apply: Callable[[Event], None],
        apply_soon: Callable[[Event], None],
        clock: Callable[[], float],
        observe_answer_s: Callable[[float], None],
    ) -> None:
        """Create it without calls.

        Args:
            apply, apply_soon: pass an event to the core, at once or with others that arrive in this turn of the loop.
            observe_answer_s: receives the seconds that each upload waited.
        """
        self._apply = apply
        self._apply_soon = apply_soon
        self._clock = clock
        self._observe_answer_s = observe_answer_s
        self._uploads: dict[UploadId, tuple[float, Answered]] = {}  # since when each waits, and for what
        self._batches: dict[Step, list[asyncio.Future[ServeBatch]]] = {}
        self._epochs: dict[int, asyncio.Future[AnswerEpoch]] = {}
        self._ids = itertools.count(1)

    def answer(self, action: AnswerUpload | ServeBatch | AnswerEpoch) -> None:
        """Resolve the call that this action answers, if it still waits."""
        match action:
            case AnswerUpload():
                waiting_upload = self._uploads.pop(action.upload_id, None)
                if waiting_upload is not None:
                    arrived_at, answered = waiting_upload
                    self._observe_answer_s(self._clock() - arrived_at)
                    answered(action)
            case ServeBatch():
                for waiting in self._batches.get(action.step, ()):
                    _answer(waiting, action)
            case AnswerEpoch():
                _answer(self._epochs.get(action.request_id), action)
            case _:
                assert_never(action)

    def upload(self, event_of: Callable[[UploadId], Event], answered: Answered) -> None:
        """Apply an upload's event; its answer comes once the upload is durable or refused."""
        upload_id = UploadId(next(self._ids))
        self._uploads[upload_id] = self._clock(), answered
        self._apply_soon(event_of(upload_id))

    async def batch(self, step: Step, wait_s: float) -> ServeBatch | None:
        """Request the batch of a step; return None if it is not recorded within ``wait_s`` seconds."""
        served: asyncio.Future[ServeBatch] = asyncio.get_running_loop().create_future()
        self._batches.setdefault(step, []).append(served)
        self._apply(BatchRequested(step))
        try:
            async with asyncio.timeout(wait_s):
                return await served
        except TimeoutError:
            return None
        finally:  # a learner that called again, because its connection broke, keeps waiting
            self._batches[step].remove(served)
            if not self._batches[step]:
                del self._batches[step]

    async def epoch(self, step: Step, common_version: Version | None) -> AnswerEpoch:
        """Request an epoch; returns once it is durable.

        Raises:
            WaitTimedOut: the ledger takes too long.
        """
        request_id = next(self._ids)
        answer: asyncio.Future[AnswerEpoch] = asyncio.get_running_loop().create_future()
        self._epochs[request_id] = answer
        self._apply(EpochRequested(request_id, step, common_version))
        try:
            async with deadline(EPOCH_DEADLINE_S, "the ledger to record an epoch"):
                return await answer
        finally:
            del self._epochs[request_id]


def _answer(waiting: asyncio.Future[ActionT] | None, action: ActionT) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(action)
