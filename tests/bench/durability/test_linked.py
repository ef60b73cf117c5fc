"""Test what a fleet that speaks over a link does with answers that come late."""

from __future__ import annotations

import asyncio

from bench.durability.linked import settle
from coordinator.core.events.actions import AnswerUpload
from rollcast.wire.ids import LeaseId, UploadId

ANSWER = AnswerUpload(UploadId(0), LeaseId(1), 0, False, "busy")


async def test_the_answer_to_a_peer_that_was_stopped_is_dropped() -> None:
    waiting, stopped = (asyncio.get_running_loop().create_future() for _ in range(2))
    stopped.cancel()
    for answered in (waiting, stopped):
        settle(answered, ANSWER)
    assert waiting.result() == ANSWER
