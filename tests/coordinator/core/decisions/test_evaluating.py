"""Test evaluations by peers: who gets the leases, which rollouts count, and how an evaluation ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordinator.core.core import CoordinatorCore
from coordinator.core.decisions.evaluating import ALL_NEWER_S, NO_PEER_S, RETURN_REST_S
from coordinator.core.events.actions import (
    Action,
    AnswerUpload,
    Note,
    Penalise,
    RecordAttempt,
    RevokeLeases,
    ScoreEvaluation,
    StoreRollout,
)
from coordinator.core.events.evaluation_events import (
    EvaluationAnswered,
    EvaluationKey,
    EvaluationProblem,
    EvaluationRequested,
    EvaluationScored,
)
from coordinator.core.events.events import (
    EpochRequested,
    Event,
    LeasesReturned,
    MalformedRollout,
    PeerLeft,
    Prompt,
    RunEnded,
    Started,
    Tick,
)
from coordinator.core.events.operator_events import PeerBanned
from coordinator.core.events.restored import Restored, RestoredAttempt, RestoredFinished, RestoredGroup
from coordinator.core.leases.evaluation_book import SAMPLES_MAX, Evaluation
from rollcast.wire.evaluation import evaluation_seed
from rollcast.wire.ids import FencingToken, GroupId, LeaseId, PeerId, Step, UploadId, Version
from rollcast.wire.rollouts import LeaseGrant, observation, prefix_digest
from tests.coordinator.core_world import (
    SAMPLING,
    World,
    announced,
    heartbeat,
    held,
    joined,
    only,
    received,
    rollout,
    settings,
    wants,
)

A, B = PeerId("a"), PeerId("b")


def asked(version: int = 0, problems: int = 4, samples: int = 1, deadline_s: float = 600.0) -> EvaluationRequested:
    key = EvaluationKey("held_out", Version(version), problems, samples, seed=3)
    return EvaluationRequested(
        key, tuple(EvaluationProblem(100 + one, (20, one)) for one in range(problems)), deadline_s
    )


class Evaluated(World):
    """A world whose verifiers find every completion right; evaluation leases are collected beside the others."""

    def handle(self, event: Event) -> list[Action]:
        done = super().handle(event)
        for action in only(done, ScoreEvaluation):
            done += super().handle(EvaluationScored(action.key, action.problem, action.sample_index, 0.5, True))
        return done

    def leases(self, peer: str) -> list[LeaseGrant]:
        """Return the evaluation leases sent to this peer since the last call."""
        found = [grant for grant in self.grants.get(peer, []) if grant.kind == "evaluation"]
        self.grants[peer] = [grant for grant in self.grants.get(peer, []) if grant.kind != "evaluation"]
        return found

    def send(self, peer: str, lease: LeaseGrant, *, version: int = 0, **changes: Any) -> list[Action]:
        done: list[Action] = []
        for slot in lease.slots:
            self.uploads += 1
            item = rollout(lease, slot.sample_index, version=version, peer=peer, **changes)
            done += self.handle(received(peer, self.uploads, item))
        return done

    def of(self, request: EvaluationRequested) -> Evaluation:
        found = self.core.evaluation(request.key)
        assert found is not None
        return found

    def passes(self, seconds: float, *here: str) -> list[Action]:
        self.now += seconds
        for name in ("origin", *here):
            self.handle(heartbeat(name))
        return self.handle(Tick())


def world(*peers: str, **changes: Any) -> Evaluated:
    made = Evaluated(**{"heartbeat_timeout_s": 1e6, "prefetch_batches": 2.0, "evaluation_share": 1.0} | changes)
    made.start(*peers)
    return made


def test_held_out_problems_are_leased_scored_and_never_stored() -> None:
    made, request = world("a"), asked(problems=3, samples=2)
    made.handle(request)
    done = made.handle(wants("a", 4))
    first, second = made.leases("a")
    assert [(one.kind, one.oldest_useful_version, one.group_id) for one in (first, second)] == [
        ("evaluation", 0, 0)
    ] * 2
    assert [one.prompt_token_ids for one in (first, second)] == [(20, 0), (20, 1)]
    assert [slot.seed for slot in second.slots] == [evaluation_seed(3, 1, sample) for sample in (0, 1)]
    done += made.send("a", first) + made.send("a", second)
    while leases := made.leases("a"):
        for lease in leases:
            done += made.send("a", lease)
    evaluation = made.of(request)
    assert (evaluation.done, evaluation.exact, evaluation.rewards) == (True, [2, 2, 2], [1.0, 1.0, 1.0])
    assert only(done, StoreRollout) == only(done, RecordAttempt) == []
    scored = only(done, ScoreEvaluation)
    assert [(one.example_id, one.sample_index) for one in scored] == [(100 + n, i) for n in range(3) for i in range(2)]
    assert made.core.state.accounts.issued == 0
    judged = made.core.state.unseen.take(24, Version(0))
    assert len(judged) == len({one.rollout_id for one in judged}) == 6, "the learner judges a newcomer's in full"
    for one, (number, sample) in zip(judged, [(n, i) for n in range(3) for i in range(2)], strict=True):
        assert one.evaluated is not None
        prompt, seed, item = one.evaluated
        assert (prompt, seed) == ((20, number), evaluation_seed(3, number, sample))
        assert (item.segments[0].peer_id, item.sample_index) == (A, sample)


def test_a_repeated_request_changes_nothing_and_a_repeated_upload_gets_the_same_answer() -> None:
    made, request = world("a"), asked()
    made.handle(request)
    assert made.handle(request) == []
    made.handle(wants("a", 1))
    lease, *_ = made.leases("a")
    for _ in range(2):
        (answer,) = only(made.send("a", lease), AnswerUpload)
        assert answer.accepted
    assert made.of(request).scored == 1


def test_only_members_with_the_version_get_its_problems() -> None:
    made = world("a", "b")
    made.handle(announced(1))
    made.handle(held("b", 1))
    made.handle(asked(version=1))
    made.handle(wants("a", 2))
    made.handle(wants("b", 2))
    assert made.leases("a") == []
    assert len(made.leases("b")) == 4


def test_a_member_that_evaluates_goes_on_although_it_has_a_newer_version_too() -> None:
    made = world("a")
    made.handle(asked(problems=8))
    made.handle(wants("a", 2))
    first = made.leases("a")
    made.handle(announced(1))
    made.handle(held("a", 1))
    made.send("a", first[0])
    made.handle(wants("a", 1))
    assert len(made.leases("a")) == 1


def test_a_share_of_the_fleet_evaluates_and_gets_no_other_work_meanwhile() -> None:
    made, request = world("a", "b", "c", "d", evaluation_share=0.25), asked(problems=5)
    made.handle(request)
    for name in ("b", "a", "c", "d"):
        made.handle(wants(name, 4))
    counts = [len(made.leases(name)) for name in ("a", "c", "d")]
    assert counts == [0, 0, 0]
    leases = made.leases("b")
    assert len(leases) == 4  # the two batches that a member may hold
    assert made.grants["a"]
    made.handle(wants("b", 2))
    assert not made.grants["b"]
    made.send("b", leases[0])
    assert len(made.leases("b")) == 1  # the last one


def test_a_member_that_evaluates_never_runs_out_of_samples() -> None:
    made = world("a")
    made.handle(asked(problems=64))
    made.handle(wants("a", 1))
    for _ in range(3):
        (lease, *_) = made.leases("a")
        made.send("a", lease)  # without a request for work
        assert len(made.core.state.evaluations.held_by(A)) == 4


def test_a_member_larger_than_the_share_evaluates_alone() -> None:
    made = world("a", "b", evaluation_share=0.1)
    made.handle(asked(problems=64))
    made.handle(wants("a", 4))
    made.handle(wants("b", 4))
    assert [len(made.leases(name)) for name in ("a", "b")] == [4, 0]


def test_members_may_train_again_after_an_evaluation_was_given_up() -> None:
    made = world("a")
    made.handle(asked(problems=64, deadline_s=10.0))
    made.handle(wants("a", 9))
    assert len(made.leases("a")) == 4
    assert not made.grants["a"]
    made.passes(10.0, "a")
    assert made.grants["a"]


def test_all_slots_may_evaluate_once_every_batch_was_formed() -> None:
    made = world("a", "b", evaluation_share=0.25, steps=0)
    made.handle(asked(problems=64))
    for name in ("a", "b"):
        made.handle(wants(name, 4))
    assert [len(made.leases(name)) for name in ("a", "b")] == [4, 4]


def test_an_expired_lease_is_revoked_and_issued_again() -> None:
    made, request = world("a", "b", lease_deadline_s=30.0), asked(problems=1)
    made.handle(request)
    made.handle(wants("a", 1))
    (lease,) = made.leases("a")
    revoked = only(made.passes(30.0, "a", "b"), RevokeLeases)
    assert revoked == [RevokeLeases(A, (lease.lease_id,), "lease_expired")]
    made.handle(wants("b", 1))
    (again,) = made.leases("b")
    assert (again.prompt_token_ids, again.slots) == (lease.prompt_token_ids, lease.slots)
    (refused,) = only(made.send("a", lease), AnswerUpload)
    assert (refused.accepted, refused.reason) == (False, "fenced")
    made.send("b", again)
    assert made.of(request).done


def test_whoever_lets_a_lease_expire_does_not_get_it_again_before_others() -> None:
    made = world("a", "b", lease_deadline_s=30.0)
    made.handle(asked(problems=1))
    made.handle(wants("a", 1))
    assert len(made.leases("a")) == 1
    made.passes(30.0, "a", "b")
    made.handle(wants("a", 1))
    assert made.leases("a") == []
    made.handle(wants("b", 1))
    assert len(made.leases("b")) == 1


def test_a_member_holds_no_more_samples_than_it_may_hold_slots() -> None:
    made = world("b", samples_per_group=2, groups_per_step=2)
    made.handle(replace(joined("a"), concurrent_rollouts=65_536))
    made.handle(held("a", 0))
    made.handle(asked(problems=64))
    made.handle(wants("a", 65_536))
    may_hold = made.core._state.allowances.first
    assert sum(len(lease.slots) for lease in made.leases("a")) == may_hold < 64
    made.handle(wants("b", 1))
    assert made.leases("b")


def test_a_returned_lease_goes_to_another_member_first() -> None:
    made = world("a", "b")
    made.handle(asked(problems=1))
    made.handle(wants("a", 1))
    (lease,) = made.leases("a")
    made.handle(LeasesReturned(A, (lease.lease_id,), "version 1 is active"))
    made.handle(wants("a", 1))
    assert made.leases("a") == []
    made.handle(wants("b", 1))
    assert len(made.leases("b")) == 1


@pytest.mark.parametrize("finished", [False, True])
def test_the_samples_of_a_member_that_left_are_issued_again_at_once(finished: bool) -> None:
    made, request = world("a", "b"), asked(problems=1)
    made.handle(request)
    made.handle(wants("a", 1))
    (lease,) = made.leases("a")
    made.handle(PeerLeft(A, "bye", finished))
    made.handle(wants("b", 1))
    (again,) = made.leases("b")
    made.handle(joined("a"))
    (answer,) = only(made.send("a", lease), AnswerUpload)
    assert answer.accepted is not finished
    assert made.of(request).done is not finished
    made.send("b", again)
    assert made.of(request).done


def test_a_member_that_reconnects_without_the_lease_opens_its_samples() -> None:
    made = world("a")
    made.handle(asked(problems=1))
    made.handle(wants("a", 1))
    made.leases("a")
    made.handle(PeerLeft(A, "connection reset"))
    made.handle(replace(joined("a"), held_leases=()))
    made.handle(held("a", 0))
    made.handle(wants("a", 1))
    assert len(made.leases("a")) == 1


def test_a_member_that_rejoins_after_a_restart_of_the_coordinator_ends_its_evaluation_leases() -> None:
    live = RestoredAttempt(LeaseId(1), FencingToken(1), 0, A)
    group = RestoredGroup(GroupId(1), Prompt("problem", (10, 1), "position"), (live,), ())
    finished = RestoredFinished(LeaseId(3), 1, A, GroupId(9), stored=True)
    restored = Restored(
        incarnation=1, versions={Version(0): 16}, last_group=9, issued=1, groups=(group,), finished=(finished,)
    )
    made = Evaluated()
    made.core = CoordinatorCore(settings(), restored)
    made.handle(Started())
    own = LeaseId(restored.ids_before + 1)
    actions = made.handle(replace(joined("a"), held_leases=(LeaseId(1), LeaseId(2), LeaseId(3), own)))
    assert only(actions, RevokeLeases) == [RevokeLeases(A, (LeaseId(2),), "coordinator_restarted")]


def test_a_banned_member_loses_its_leases() -> None:
    made = world("a", "b")
    made.handle(asked(problems=1))
    made.handle(wants("a", 1))
    (lease,) = made.leases("a")
    assert only(made.handle(PeerBanned(A, "", "a")), RevokeLeases) == [RevokeLeases(A, (lease.lease_id,), "revoked")]
    made.handle(wants("b", 1))
    assert len(made.leases("b")) == 1


@pytest.mark.parametrize(
    ("changes", "blamed"),
    [
        ({"version": 1}, "that version 1 generated"),
        ({"fencing_token": FencingToken(99)}, "wrong fencing token"),
        ({"segments": ()}, "without segments"),
    ],
)
def test_what_no_honest_member_sends_is_refused(changes: dict[str, Any], blamed: str) -> None:
    made, request = world("a"), asked(problems=1)
    made.handle(announced(1))
    made.handle(request)
    made.handle(wants("a", 1))
    (lease,) = made.leases("a")
    actions = made.send("a", lease, **changes)
    assert [blamed in one.reason for one in only(actions, Penalise)] == [True]
    assert not any(one.accepted for one in only(actions, AnswerUpload))
    assert made.of(request).scored == 0


def test_another_members_lease_and_what_cannot_be_parsed_are_refused() -> None:
    made, request = world("a", "b"), asked(problems=1)
    made.handle(request)
    made.handle(wants("a", 1))
    (lease,) = made.leases("a")
    assert only(made.send("b", lease), Penalise) != []
    made.handle(MalformedRollout(UploadId(50), B, lease.lease_id, lease.fencing_token, 0, "no rollout"))
    assert not made.of(request).open
    made.handle(MalformedRollout(UploadId(51), A, lease.lease_id, lease.fencing_token, 0, "no rollout"))
    assert made.of(request).open


def test_an_interrupted_rollout_is_issued_again() -> None:
    made, request = world("a"), asked(problems=1)
    made.handle(request)
    made.handle(wants("a", 1))
    (lease,) = made.leases("a")
    (answer,) = only(made.send("a", lease, finish_reason="interrupted"), AnswerUpload)
    assert (answer.accepted, answer.reason) == (False, "returned")
    assert made.of(request).open


def test_uploads_wait_while_the_verifiers_are_behind() -> None:
    made = world("a", scoring_queue_max=0)
    made.handle(asked(problems=1))
    made.handle(wants("a", 1))
    (lease,) = made.leases("a")
    assert [one.reason for one in only(made.send("a", lease), AnswerUpload)] == ["busy"]


def given_up(actions: list[Action]) -> list[str]:
    return [one.detail for one in only(actions, Note) if one.kind == "evaluation_given_up"]


def test_an_evaluation_is_given_up_at_its_deadline() -> None:
    made, request = world("a"), asked(problems=1, deadline_s=60.0)
    made.handle(request)
    made.handle(wants("a", 1))
    (lease,) = made.leases("a")
    assert given_up(made.passes(59.0, "a")) == []
    actions = made.passes(1.0, "a")
    assert given_up(actions) == ["its deadline of 60 s has passed; 0 of 1 samples are scored"]
    assert made.of(request).given_up
    made.passes(60.0, "a")
    assert made.core.evaluation(request.key) is None  # and may be asked for again
    assert [one.reason for one in only(made.send("a", lease), AnswerUpload)] == ["fenced"]


def test_an_evaluation_without_any_peer_is_given_up_early() -> None:
    made = world()
    made.handle(asked())
    assert given_up(made.passes(NO_PEER_S - 1.0)) == []
    assert given_up(made.passes(1.0)) == ["there is no peer"]


def test_an_evaluation_of_a_version_that_no_peer_has_any_more_is_given_up_early() -> None:
    made = world("a")
    made.handle(announced(1))
    made.handle(held("a", 1))
    made.handle(heartbeat("a", active=1))
    made.handle(asked(version=0))
    made.passes(ALL_NEWER_S - 1.0)
    made.handle(heartbeat("a", active=1))
    made.now += 1.0
    made.handle(heartbeat("a", active=1))
    assert given_up(made.handle(Tick())) == ["every peer has a newer version than 0"]


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (asked(version=5), "version 5 is not published"),
        (asked(problems=0), "it has 0 samples"),
        (asked(problems=1, samples=SAMPLES_MAX + 1), "samples, not 1 to"),
    ],
)
def test_requests_that_cannot_be_met_are_given_up_at_once(request_: EvaluationRequested, why: str) -> None:
    (reason,) = given_up(world("a").handle(request_))
    assert why in reason


def test_evaluations_at_a_time_are_limited() -> None:
    made = world("a")
    reasons = [given_up(made.handle(asked(problems=one + 1))) for one in range(18)]
    assert reasons == [[]] * 16 + [["too many evaluations are under way"]] * 2


@pytest.mark.parametrize(
    "event", [RunEnded("finished", True), RunEnded("stopped", False), EpochRequested(1, Step(0), None)]
)
def test_the_end_of_the_run_or_epoch_gives_it_up_and_revokes_its_leases(event: Event) -> None:
    made, request = world("a"), asked(problems=1)
    made.handle(request)
    made.handle(wants("a", 1))
    (lease,) = made.leases("a")
    actions = made.handle(event)
    assert len(given_up(actions)) == 1
    assert only(actions, RevokeLeases) == [RevokeLeases(A, (LeaseId(lease.lease_id),), "evaluation_over")]


# ---------------------------------------------------------------- several turns


def playing(samples: int = 1) -> EvaluationRequested:
    request = asked(problems=1, samples=samples)
    return replace(request, problems=(replace(request.problems[0], has_environment=True),))


class Played(Evaluated):
    """A world whose environment says (5, 6) after each turn but the third one, and then gives the reward 0.5."""

    def handle(self, event: Event) -> list[Action]:
        done = World.handle(self, event)
        for action in only(done, ScoreEvaluation):
            sample = (action.key, action.problem, action.sample_index)
            if len(action.turn_lengths) == 5:
                done += World.handle(self, EvaluationScored(*sample, 0.5, True))
            else:
                done += World.handle(self, EvaluationAnswered(*sample, observation("user", (5, 6))))
        return done

    def send(self, peer: str, lease: LeaseGrant, *, version: int = 0, **changes: Any) -> list[Action]:
        """Send turns as a peer does: after what an environment answered, with the digest of the prefix instead."""
        (slot,) = lease.slots
        if slot.prefix:
            changes = {"prefix_digest": prefix_digest(slot.prefix)} | changes
        return super().send(peer, lease, version=version, **changes)


def played() -> Played:
    longest = replace(SAMPLING, max_new_tokens=16)
    made = Played(heartbeat_timeout_s=1e6, prefetch_batches=2.0, evaluation_share=1.0, sampling=longest)
    made.start("a", "b")
    return made


def test_a_sample_is_leased_turn_after_turn_until_its_environment_has_ended() -> None:
    made, request = played(), playing()
    made.handle(request)
    done = made.handle(wants("a", 4))
    prefixes = []
    for _ in range(3):
        (lease,) = made.leases("a")
        assert lease.keep_version_s > 0
        assert [slot.seed for slot in lease.slots] == [evaluation_seed(3, 0, 0)]
        prefixes.append([segment.token_ids for segment in lease.slots[0].prefix])
        done += made.send("a", lease)
    turn = rollout(lease, 0, version=0, peer="a").segments[-1].token_ids
    assert prefixes == [[], [turn, (5, 6)], [turn, (5, 6), turn, (5, 6)]]
    assert only(done, ScoreEvaluation)[-1].turn_lengths == (2, 2, 2, 2, 2)
    evaluation = made.of(request)
    assert (evaluation.done, evaluation.exact, evaluation.rewards) == (True, [1], [0.5])
    assert only(done, StoreRollout) == only(done, Penalise) == []
    assert only(done, RevokeLeases) == [RevokeLeases(A, (lease.lease_id,), "evaluation_over")], "it may swap again"
    judged = made.core.state.unseen.take(24, Version(0))
    segments = [len(one.evaluated[2].segments) for one in judged if one.evaluated is not None]
    assert sorted(segments) == [1, 3, 5], "an audit sees all turns"
    made.core.validate()


def test_a_turn_that_follows_on_another_prefix_is_malformed() -> None:
    made, request = played(), playing()
    made.handle(request)
    made.handle(wants("a", 4))
    (first,) = made.leases("a")
    made.send("a", first)
    (second,) = made.leases("a")
    done = made.send("a", second, prefix_digest=b"x" * 16)
    assert [one.reason for one in only(done, AnswerUpload)] == ["malformed"]
    assert "does not follow on the prefix" in only(done, Penalise)[0].reason


def test_another_peer_takes_the_next_turn_of_one_that_left() -> None:
    made, request = played(), playing()
    made.handle(request)
    made.handle(wants("a", 4))
    (first,) = made.leases("a")
    made.send("a", first)
    made.handle(PeerLeft(A, "gone"))
    made.handle(wants("b", 4))
    (second,) = made.leases("b")
    assert len(second.slots[0].prefix) == 2
    made.core.validate()


def test_a_peer_that_returns_a_turn_because_it_has_swapped_gets_no_other_one() -> None:
    made, request = played(), playing()
    made.handle(request)
    made.handle(wants("a", 4))
    (first,) = made.leases("a")
    made.send("a", first)
    (second,) = made.leases("a")
    made.handle(announced(1))
    made.handle(held("a", 1))
    made.handle(heartbeat("a", active=1))
    made.handle(LeasesReturned(A, (second.lease_id,), "version 1 is active"))
    made.now += RETURN_REST_S
    made.handle(heartbeat("a", active=1))
    made.handle(wants("a", 4))
    assert made.leases("a") == []
    made.handle(wants("b", 4))
    assert len(made.leases("b")) == 1
    made.core.validate()


def test_an_answer_to_an_evaluation_that_was_given_up_changes_nothing() -> None:
    made, request = played(), playing()
    made.handle(request)
    made.handle(wants("a", 4))
    assert made.handle(RunEnded("over", final=True)) != []
    assert World.handle(made, EvaluationAnswered(request.key, 0, 0, observation("user", (5, 6)))) == []
