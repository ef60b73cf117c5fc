"""What the learner is sent beside a batch."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.core.events.actions import ServeBatch
from coordinator.core.events.audit_events import Unseen
from coordinator.core.events.versions_kept import VersionsKept
from coordinator.ledger.store import BatchEntry
from coordinator.rpc.learner import LearnerCalls
from rollcast.wire.ids import GroupId, PeerId, RolloutId, Step, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollout_messages import rollout_to_pb
from rollcast.wire.rollouts import LeaseGrant
from tests.coordinator.core_world import SAMPLING, rollout

A = PeerId("a")


def entry(number: int) -> BatchEntry:
    lease = cast(LeaseGrant, SimpleNamespace(lease_id=number, fencing_token=1, group_id=3))
    body = rollout_to_pb(rollout(lease, 0))
    return BatchEntry(RolloutId(number), GroupId(3), (2, 3), body, 0.5, exact=False, seed=7)


class Batches:
    """A run with the batch of one rollout, in whose ledger rollout 8 was compacted."""

    async def read(self, _step: Step) -> tuple[int, Any]:
        async def parts() -> Any:
            yield [entry(1)]

        return 1, parts()

    async def read_rollouts(self, rollout_ids: Sequence[RolloutId]) -> list[BatchEntry]:
        assert list(rollout_ids) == [8, 9]
        return [entry(9)]


async def test_rollouts_to_be_judged_follow_the_batch_with_their_prompts_and_seeds() -> None:
    evaluated = ((4, 5), 11, rollout(cast(LeaseGrant, SimpleNamespace(lease_id=5, fencing_token=1, group_id=0)), 2))
    unseen = (
        Unseen(RolloutId(8), A, Version(0)),
        Unseen(RolloutId(9), A, Version(0)),
        Unseen(RolloutId(1280), A, Version(0), evaluated),
    )

    async def batch(step: Step, _wait_s: float) -> ServeBatch:
        return ServeBatch(step, replayed=False, unseen=unseen)

    rules = SimpleNamespace(publish_every_steps=1, kept=VersionsKept(4))
    core = SimpleNamespace(recorded_batches=1, rules=rules, is_last=lambda step: False)
    shell = SimpleNamespace(core=core, batch=batch, batches=Batches())
    nothing: Any = None
    calls = LearnerCalls(
        run=pb.RunInfo(sampling=pb.Sampling(temperature=SAMPLING.temperature)),
        learner_public_key=b"",
        shell=cast(Any, shell),
        ledger=nothing,
        problems=nothing,
        sessions=nothing,
        samples=None,
        evaluations=nothing,
    )
    sent: list[pb.BatchPart] = []

    async def write(part: pb.BatchPart) -> None:
        sent.append(part)

    await calls.NextBatch(pb.BatchRequest(step=0), SimpleNamespace(write=write))
    assert (sent[0].header.rollout_count, sent[0].header.unseen_count) == (1, 2)
    assert [one.rollout_id for part in sent for one in part.rollouts] == [1]
    shown = [one for part in sent for one in part.unseen]
    assert [(one.rollout_id, [*one.prompt_token_ids], one.seed) for one in shown] == [
        (9, [2, 3], 7),
        (1280, [4, 5], 11),
    ]
    assert shown[1].segments[0].peer_id == "a"
    assert shown[1].sampling.temperature == SAMPLING.temperature


class Examples:
    """A task whose examples take so many seconds each."""

    def __init__(self, seconds: float) -> None:
        self.now, self.asked, self._seconds = 0.0, list[int](), seconds

    async def examples(self, count: int, *, flawed: bool, cursor: int) -> list[pb.Example]:
        assert not flawed
        self.asked.append(count)
        self.now += count * self._seconds
        return [pb.Example(example_id=cursor + number) for number in range(count)]


@pytest.mark.parametrize(("seconds", "most_at_once", "calls_most"), [(0.0, 256, 12), (0.1, 8, 300), (5.0, 1, 1000)])
async def test_examples_of_slow_environments_are_sent_as_they_are_made(
    seconds: float, most_at_once: int, calls_most: int
) -> None:
    """A learner gives a call 30 s, and keeps what came: 256 games of half a second each never came."""
    problems, nothing, sent = Examples(seconds), cast(Any, None), list[int]()
    calls = LearnerCalls(
        run=pb.RunInfo(),
        learner_public_key=b"",
        shell=nothing,
        ledger=nothing,
        problems=cast(Any, problems),
        sessions=nothing,
        samples=None,
        evaluations=nothing,
        clock=lambda: problems.now,
    )

    async def write(example: pb.Example) -> None:
        sent.append(example.example_id)

    await calls.Examples(pb.ExamplesRequest(count=1000, cursor=5), SimpleNamespace(write=write))
    assert sent == list(range(5, 1005))
    assert max(problems.asked) == most_at_once
    assert len(problems.asked) <= calls_most
