"""Script a coordinator that carries out every other call and then drops it before the answer has arrived."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import grpc

from rollcast.wire.proto import rollcast_pb2 as pb
from tests.learner.scripted_run import Authority, Script, ScriptedCoordinator


class DroppingCoordinator(ScriptedCoordinator):
    """A coordinator that loses the answer to the first, third ... call of each kind after its effect."""

    def __init__(self, authority: Authority, script: Script) -> None:
        super().__init__(authority, script)
        self._calls: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()

    async def OpenLearner(self, request: pb.LearnerHello, context: Any) -> pb.RunInfo:
        reply = await super().OpenLearner(request, context)
        await self._perhaps_drop("OpenLearner", context)
        return reply

    async def Examples(self, request: pb.ExamplesRequest, context: Any) -> AsyncIterator[pb.Example]:
        async for example in super().Examples(request, context):
            yield example
        await self._perhaps_drop("Examples", context)

    async def HeldOut(self, request: pb.HeldOutRequest, context: Any) -> AsyncIterator[pb.Example]:
        async for example in super().HeldOut(request, context):
            yield example
        await self._perhaps_drop("HeldOut", context)

    async def ScoreCompletions(
        self, requests: AsyncIterator[pb.Completion], context: Any
    ) -> AsyncIterator[pb.CompletionScore]:
        async for score in super().ScoreCompletions(requests, context):
            yield score
        await self._perhaps_drop("ScoreCompletions", context)

    async def NextBatch(self, request: pb.BatchRequest, context: Any) -> AsyncIterator[pb.BatchPart]:
        async for part in super().NextBatch(request, context):
            yield part
        await self._perhaps_drop("NextBatch", context)

    async def Announce(self, request: pb.VersionAnnouncement, context: Any) -> pb.AnnounceReply:
        reply = await super().Announce(request, context)
        await self._perhaps_drop("Announce", context)
        return reply

    async def ReportStep(self, request: pb.StepReport, context: Any) -> pb.Empty:
        reply = await super().ReportStep(request, context)
        await self._perhaps_drop("ReportStep", context)
        return reply

    async def ReportStatus(self, request: pb.LearnerStatus, context: Any) -> pb.Empty:
        reply = await super().ReportStatus(request, context)
        await self._perhaps_drop("ReportStatus", context)
        return reply

    async def _perhaps_drop(self, name: str, context: Any) -> None:
        self._calls[name] += 1
        if self._calls[name] % 2:
            self.dropped[name] += 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the script drops it")
