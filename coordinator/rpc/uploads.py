"""Serve the uploads of rollouts: streams that last as long as a session, each message answered in order."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

import structlog

from coordinator.core.events.actions import AnswerUpload
from coordinator.rpc.access import Messages, caller_of, host_of
from coordinator.rpc.core_link import CoreLink
from coordinator.rpc.upload_limits import UploadLimits, UploadRates
from coordinator.shell.pending_calls import Answered
from rollcast.runtime.errors import MalformedMessage, RateLimited
from rollcast.runtime.waits import deadline
from rollcast.wire import limits
from rollcast.wire.ids import PeerId
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollout_messages import received_rollout, without_content
from rollcast.wire.routes import RouteShape

log = structlog.get_logger()

MESSAGE_DEADLINE_S = 120.0  # for the next message of a stream: a peer ends one that it does not use much earlier
UPLOAD_WAIT_MAX_S = 60.0  # before the next message of an upload that comes too fast is read; a part of that time
REFUSAL_S = 1.0  # before an upload that comes too fast is refused
VERDICT_DEADLINE_S = 30.0
UNANSWERED_MAX = 4  # messages of one stream that wait for their verdicts; no further one is read meanwhile


class UploadCalls:
    """Handles the method UploadRollouts."""

    def __init__(self, core: CoreLink, rates: UploadRates) -> None:
        self._core = core
        self._limits = UploadLimits(rates)

    async def UploadRollouts(self, uploads: Messages, context: Any) -> None:
        """Answer each message of a stream once all of its rollouts have verdicts, in order, until the peer ends it.

        A rollout has its verdict once it is durable or refused. A call for each upload would cost about as much as
        everything else that an upload needs; a message of a stream does not.
        """
        peer_id, keys = await self._caller(context)
        await self._begin(peer_id, keys)
        unanswered: asyncio.Queue[_Answers | None] = asyncio.Queue(UNANSWERED_MAX)
        reader = asyncio.create_task(self._read_stream(peer_id, keys, uploads, unanswered))
        try:
            while (answers := await unanswered.get()) is not None:
                async with deadline(VERDICT_DEADLINE_S, "the ledger to store an upload"):
                    await context.write(await answers.reply())
            await reader
        finally:
            reader.cancel()
            self._limits.end(peer_id)

    async def _caller(self, context: Any) -> tuple[PeerId, tuple[str, str]]:
        """Return who calls, and the keys of its invite and address."""
        peer_id = caller_of(context).peer_id
        return peer_id, (f"invite {await self._core.invite_of(peer_id)}", f"address {host_of(context.peer())}")

    async def _begin(self, peer_id: PeerId, keys: tuple[str, str]) -> None:
        try:
            wait_s = self._limits.begin(peer_id, keys, time.monotonic())
        except RateLimited:
            await asyncio.sleep(REFUSAL_S)  # refusing at once would invite the next call at once
            raise
        if wait_s > 0.0:
            try:
                await asyncio.sleep(wait_s)
            except BaseException:
                self._limits.end(peer_id)
                raise

    async def _read_stream(
        self, peer_id: PeerId, keys: tuple[str, str], uploads: Messages, unanswered: asyncio.Queue[_Answers | None]
    ) -> None:
        """Pass on what a stream's messages hold, until the peer has sent the last one or one that is malformed."""
        try:
            async with deadline(MESSAGE_DEADLINE_S, "the next message of a stream of uploads") as wait:
                while (upload := await anext(uploads, None)) is not None:
                    now = time.monotonic()
                    wait_s = max(
                        self._limits.read(peer_id, keys, uploads.newest_bytes, now),
                        self._limits.next(peer_id, keys, now),
                    )
                    answers = _Answers()
                    self._receive(peer_id, upload, await self._core.route_shape(), answers)
                    upload = None  # not kept while the stream waits
                    await unanswered.put(answers)
                    if wait_s > 0.0:
                        await asyncio.sleep(min(wait_s, UPLOAD_WAIT_MAX_S))
                    wait.restart()
        except asyncio.CancelledError:
            raise  # nobody takes anything from the queue any more, which may be full
        except BaseException:
            await unanswered.put(None)
            raise
        await unanswered.put(None)

    def _receive(self, peer_id: PeerId, upload: pb.RolloutUpload, routes: RouteShape | None, answers: _Answers) -> None:
        if len(upload.rollouts) > limits.ROLLOUTS_PER_UPLOAD_MAX:
            raise MalformedMessage(f"a message has at most {limits.ROLLOUTS_PER_UPLOAD_MAX} rollouts")
        for rollout in upload.rollouts:
            self._receive_rollout(peer_id, rollout, routes, answers.next())

    def _receive_rollout(
        self, peer_id: PeerId, message: pb.Rollout, routes: RouteShape | None, answered: Answered
    ) -> None:
        try:
            if self._core.expects(peer_id, message):
                rollout = received_rollout(message, routes)
            else:  # whatever it contains, its lease and token decide its answer
                rollout = without_content(message)
        except MalformedMessage as error:
            log.info("malformed rollout", peer_id=peer_id, what=error.what)
            self._core.upload_malformed(peer_id, message, error.what, answered)
        else:
            self._core.upload(peer_id, rollout, answered)


class _Answers:
    """The answers to the rollouts of one message, in the order of the rollouts."""

    def __init__(self) -> None:
        self._answers: list[AnswerUpload | None] = []
        self._missing = 0
        self._complete: asyncio.Future[None] | None = None

    def next(self) -> Answered:
        """Return what receives the answer to the next rollout."""
        self._answers.append(None)
        self._missing += 1
        return partial(self._received, len(self._answers) - 1)

    def _received(self, index: int, answer: AnswerUpload) -> None:
        self._answers[index] = answer
        self._missing -= 1
        if not self._missing and self._complete is not None and not self._complete.done():
            self._complete.set_result(None)

    async def reply(self) -> pb.UploadReply:
        """Return the verdicts once each rollout has one."""
        if self._missing:
            self._complete = asyncio.get_running_loop().create_future()
            await self._complete
        return pb.UploadReply(verdicts=[_verdict(answer) for answer in self._answers if answer is not None])


def _verdict(answer: AnswerUpload) -> pb.RolloutVerdict:
    return pb.RolloutVerdict(
        lease_id=answer.lease_id, sample_index=answer.sample_index, accepted=answer.accepted, reason=answer.reason
    )
