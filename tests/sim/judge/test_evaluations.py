"""Test that the judge of evaluations finds what it is there to find."""

from __future__ import annotations

from dataclasses import replace

from coordinator.core.events.actions import Action, ScoreEvaluation, SendLeases, StoreRollout
from coordinator.core.events.evaluation_events import EvaluationKey
from coordinator.core.events.events import Event, RolloutReceived, Tick
from rollcast.sim.engine import tokens_of
from rollcast.sim.judge.evaluations import EvaluationJudge
from rollcast.sim.judge.verdicts import Verdicts
from rollcast.sim.kernel.trace import Trace
from rollcast.sim.scenario import standard
from rollcast.wire.ids import Epoch, FencingToken, GroupId, LeaseId, PeerId, RolloutId, UploadId, Version
from rollcast.wire.rollouts import LeaseGrant, Rollout, Sampling, Segment, Slot
from rollcast.wire.token_ids import pack_ids

FLEET = standard(0)
KEY = EvaluationKey("held_out", Version(4), problems=1, samples=1, seed=7)
A = PeerId("a")
SEED = 12
LEASE = LeaseGrant(
    lease_id=LeaseId(9),
    fencing_token=FencingToken(9),
    group_id=GroupId(0),
    prompt_token_ids=(3,),
    slots=(Slot(0, SEED),),
    sampling=Sampling(1.0, 8, (1,)),
    deadline_s=10.0,
    epoch=Epoch(0),
    oldest_useful_version=Version(4),
    kind="evaluation",
)


def rollout(*, version: int = 4, seed: int = SEED) -> Rollout:
    tokens = tuple(tokens_of(seed, 0, 4))
    segment = Segment("assistant", Epoch(0), Version(version), A, pack_ids(tokens), b"\1" * 4)
    return Rollout(LEASE.lease_id, LEASE.fencing_token, LEASE.group_id, 0, (segment,), "length", 1.0)


class Judged:
    """A judge that saw the lease sent."""

    def __init__(self, *liars: str) -> None:
        self.verdicts = Verdicts(Trace())
        self.judge = EvaluationJudge(FLEET, self.verdicts, {*liars})
        self.see(Tick(), SendLeases(A, (LEASE,)))

    def see(self, event: Event, *actions: Action) -> None:
        self.judge.see(event, actions, 1.0)

    def scored(self, item: Rollout, peer: str = A) -> None:
        score = ScoreEvaluation(
            KEY, 0, 0, 100, item.completion_token_ids, (len(item.completion_token_ids),), keep=False
        )
        self.see(RolloutReceived(UploadId(1), PeerId(peer), item), score)

    @property
    def blamed(self) -> list[str]:
        return [one.what for one in self.verdicts.found]


def test_an_honest_evaluation_is_not_blamed() -> None:
    judged = Judged()
    judged.judge.asked(KEY, 0.0)
    judged.scored(rollout())
    judged.judge.ended(KEY, (1,), "", 5.0)
    assert judged.blamed == []
    assert (judged.judge.done, judged.judge.given_up) == (1, 0)


def test_what_was_not_leased_so_is_blamed() -> None:
    wrong = {"version": (rollout(version=5), A), "seed": (rollout(seed=13), A), "peer": (rollout(), "b")}
    for item, peer in wrong.values():
        judged = Judged()
        judged.scored(item, peer)
        assert len(judged.blamed) == 1
    liar = Judged(A)
    liar.scored(rollout(seed=13))
    assert liar.blamed == []


def test_a_sample_scored_twice_or_stored_for_training_is_blamed() -> None:
    judged = Judged()
    judged.scored(rollout())
    judged.scored(rollout())
    judged.see(Tick(), StoreRollout(RolloutId(1), A, rollout()))
    assert judged.blamed == [
        "a sample of version 4 is scored twice",
        "lease 9 of an evaluation is stored for training",
    ]


def test_an_evaluation_that_never_ends_or_has_impossible_scores_is_blamed() -> None:
    judged = Judged()
    judged.judge.asked(KEY, 0.0)
    judged.judge.asked(replace(KEY, version=Version(6)), 1000.0)
    judged.judge.ended(KEY, (2,), "", 1001.0)
    assert judged.blamed == [
        "the evaluation of version 4 has not ended after 1000 s",
        "version 4 has impossible scores (2,)",
    ]
    assert "(each evaluation ends, its samples are what was leased" in str(judged.verdicts.found[0])
