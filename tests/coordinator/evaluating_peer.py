"""Play the learner and a peer of a real coordinator until an evaluation is done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.protocol import range_to_pb
from rollcast.wire.text.tokenizer import Tokenizer
from tests.coordinator.running import WAIT_S, Member, Running, answer, rollout, version


@asynccontextmanager
async def published(coordinator: Running) -> AsyncIterator[tuple[Member, Member, Tokenizer]]:
    """Publish version 0, and yield the learner, a peer that holds it, and the run's tokenizer."""
    enrolled = await coordinator.join("learner"), await coordinator.join("peer")
    async with Member(enrolled[0]) as learner, Member(enrolled[1]) as peer:
        hello = pb.LearnerHello(protocol=range_to_pb(), learner_public_key=coordinator.learner_identity.public_key)
        info = await learner.stub.OpenLearner(hello)
        await learner.stub.Announce(version(info.run_id, coordinator.learner_identity))
        await peer.hello()
        await peer.next("announcement")
        await peer.say(version_held=pb.VersionHeld(version=0))
        yield learner, peer, Tokenizer.from_json(info.tokenizer_json)


async def evaluate_all(peer: Member, tokenizer: Tokenizer, samples: int) -> None:
    """Ask for work and complete samples: the first of each problem is right, the others are wrong."""
    await peer.say(work_request=pb.WorkRequest(free_slots=8))
    done = 0
    while done < samples:
        leases = [one for one in (await peer.next("leases")).leases if one.kind == pb.EVALUATION]
        rollouts = [
            rollout(
                lease,
                slot,
                peer.enrolment.peer_id,
                answer(tokenizer, lease, right=slot.sample_index == 0),
            )
            for lease in leases
            for slot in lease.slots
        ]
        if not rollouts:
            continue

        await _upload(peer, rollouts)
        done += len(rollouts)


async def _upload(peer: Member, rollouts: list[pb.Rollout]) -> None:
    """Upload rollouts, and repeat those refused as busy: a coordinator whose event loop is late takes none."""

    async def uploads() -> AsyncIterator[pb.RolloutUpload]:
        yield pb.RolloutUpload(rollouts=rollouts)

    async with asyncio.timeout(WAIT_S):
        while rollouts:
            verdicts = [one async for reply in peer.stub.UploadRollouts(uploads()) for one in reply.verdicts]
            refused = [one.reason for one in verdicts if not one.accepted]
            assert set(refused) <= {"busy"}, refused
            rollouts = [item for item, verdict in zip(rollouts, verdicts, strict=True) if not verdict.accepted]


async def ended(learner: Member, request: pb.EvaluationRequest) -> pb.EvaluationReply:
    """Repeat a request until the evaluation has ended."""
    async with asyncio.timeout(20.0):
        while True:
            reply: pb.EvaluationReply = await learner.stub.Evaluate(request)
            if reply.ended:
                return reply
