"""Test I10, the time to the learner's next new step after faults, the deadlines of leases, and the leadership."""

from __future__ import annotations

from dataclasses import replace

from coordinator.core.events.actions import Action, AnswerUpload, CloseAttempt, RecordAttempt, SendLeases, StoreRollout
from coordinator.core.events.events import Prompt, Tick, WorkRequested
from coordinator.core.events.restored import Restored, RestoredAttempt, RestoredGroup
from rollcast.sim.judge.oracle import Oracle
from rollcast.sim.kernel.trace import Trace
from rollcast.sim.scenario import realistic, standard
from rollcast.sim.settings import FleetSettings
from rollcast.wire.ids import Epoch, FencingToken, GroupId, LeaseId, PeerId, RolloutId, UploadId, Version
from rollcast.wire.rollouts import LeaseGrant, Rollout, Sampling, Segment, Slot
from rollcast.wire.token_ids import pack_ids

ENDED_S = 1000.0  # the last fault
FLEET = realistic(10)


def judge(settings: FleetSettings) -> Oracle:
    """Return the judge of a learner that completed eight steps, long ago."""
    oracle = Oracle(settings, Trace())
    for step in range(1, 9):
        oracle.stepped(step, 0, b"", float(step))
    return oracle


def blamed(oracle: Oracle, after_s: float) -> bool:
    oracle.calm(ENDED_S, ENDED_S + after_s)
    return bool(oracle.violations)


def test_the_standard_mix_has_thirty_seconds() -> None:
    assert not blamed(judge(standard(0)), 30.0)
    assert blamed(judge(standard(0)), 30.1)


def test_other_fleets_have_the_time_of_a_step_that_starts_without_rollouts() -> None:
    limit_s = FLEET.resume_limit_s
    assert not blamed(judge(FLEET), limit_s)
    oracle = judge(FLEET)
    assert blamed(oracle, limit_s + 1.0)
    assert oracle.violations[0].what == "no new step for 1456 s, faults ended 464 s ago; 462 s are allowed"


def test_repeated_steps_after_a_fault_extend_its_time() -> None:
    oracle = judge(FLEET)
    for step in range(1, 5):
        oracle.stepped(step, 0, b"", ENDED_S + 55.0 * step)
    assert oracle.resume_by_s(ENDED_S) == ENDED_S + 4 * 55.0 + FLEET.resume_limit_s
    assert not blamed(oracle, 4 * 55.0 + FLEET.resume_limit_s)
    assert blamed(oracle, 4 * 55.0 + FLEET.resume_limit_s + 1.0)


def test_steps_repeated_before_the_faults_ended_do_not() -> None:
    oracle = judge(FLEET)
    oracle.stepped(3, 0, b"", ENDED_S - 300.0)
    assert oracle.resume_by_s(ENDED_S) == ENDED_S + FLEET.resume_limit_s


def test_a_learner_that_repeats_the_same_steps_for_ever_is_found() -> None:
    oracle = judge(FLEET)
    for turn in range(40):
        oracle.stepped(1 + turn % 8, 0, b"", ENDED_S + 55.0 * turn)
    assert oracle.resume_by_s(ENDED_S) == ENDED_S + FLEET.calm_limit_s
    assert blamed(oracle, FLEET.calm_limit_s + 1.0)


def test_in_the_standard_mix_repeated_steps_earn_no_more_time() -> None:
    oracle = judge(standard(0))
    oracle.stepped(8, 0, b"", ENDED_S + 25.0)
    assert oracle.resume_by_s(ENDED_S) == ENDED_S + 30.0


def test_a_new_step_meets_the_limit() -> None:
    oracle = judge(FLEET)
    oracle.stepped(9, 0, b"", ENDED_S + 400.0)
    assert not blamed(oracle, 401.0)


LEASE_S = FLEET.lease_deadline_s
PEER = PeerId("peer-0")
ISSUED = RecordAttempt(LeaseId(1), FencingToken(1), GroupId(1), 0, 7, PEER)


def ticked(oracle: Oracle, at_s: float, *actions: Action) -> list[str]:
    oracle.coordinator_handled(Tick(), actions, at_s)
    return [one.rule for one in oracle.violations]


def test_an_attempt_that_is_live_after_its_deadline_is_found_at_the_next_tick() -> None:
    oracle = judge(FLEET)
    oracle.coordinator_handled(WorkRequested(PEER, 1), [ISSUED], 5.0)
    assert not ticked(oracle, 4.9 + LEASE_S)
    assert ticked(oracle, 5.0 + LEASE_S) == ["deadline"]
    assert oracle.violations[0].what == "lease 1 of peer-0 is live 0.0 s after its deadline"


def test_an_attempt_that_the_tick_closes_is_in_order() -> None:
    oracle = judge(FLEET)
    oracle.coordinator_handled(WorkRequested(PEER, 1), [ISSUED], 5.0)
    assert not ticked(oracle, 5.0 + LEASE_S, CloseAttempt(LeaseId(1), 0, "lease_expired"))


def test_a_restarted_coordinator_gives_live_attempts_a_full_period() -> None:
    oracle = judge(FLEET)
    oracle.coordinator_handled(WorkRequested(PEER, 1), [ISSUED], 5.0)
    live = RestoredAttempt(LeaseId(1), FencingToken(1), 0, PEER)
    group = RestoredGroup(GroupId(1), Prompt("p", (2,), ""), (live,), ())
    oracle.coordinator_started(2, Restored(incarnation=2, issued=1, groups=(group,)), 100.0)
    assert not ticked(oracle, 99.9 + LEASE_S)
    assert ticked(oracle, 100.0 + LEASE_S) == ["deadline"]


def test_a_prefix_that_a_peer_generated_itself_is_no_older_version_of_its_own() -> None:
    oracle = judge(standard(0))

    def answered(lease: int, prefix: tuple[Segment, ...], *versions: int) -> bool:
        own = tuple(Segment("assistant", Epoch(0), Version(one), PEER, pack_ids((5,)), b"\1") for one in versions)
        ids = LeaseId(lease), FencingToken(lease), GroupId(lease)
        grant = LeaseGrant(*ids, (2,), (Slot(0, 7, prefix),), Sampling(1.0, 8, (1,)), 10.0, Epoch(0), Version(0))
        issued = RecordAttempt(*ids, 0, 7, PEER)
        oracle.coordinator_handled(WorkRequested(PEER, 1), [issued, SendLeases(PEER, (grant,))], lease)
        rollout = Rollout(*ids, 0, (*prefix, *own), "stop", 0.1)
        oracle.coordinator_handled(WorkRequested(PEER, 1), [StoreRollout(RolloutId(lease), PEER, rollout)], lease)
        return any(one.rule == "version" for one in oracle.violations)

    before = (Segment("assistant", Epoch(0), Version(2), PEER, pack_ids((4,)), b"\1"),)
    assert not answered(1, (), 3)
    assert not answered(2, before, 3)
    assert answered(3, before, 2)


def test_only_the_leader_commits() -> None:
    oracle = judge(FLEET)
    oracle.leads("coordinator", 1, 0.0)
    oracle.committed("coordinator", 1, 1.0)
    oracle.leads("coordinator-2", 2, 5.0)
    oracle.committed("coordinator-2", 2, 6.0)
    assert not oracle.violations
    oracle.committed("coordinator", 1, 7.0)
    assert [one.rule for one in oracle.violations] == ["leader"]


def test_a_deposed_coordinator_acknowledges_only_what_is_stored() -> None:
    oracle = judge(FLEET)
    event = WorkRequested(PEER, 1)
    answer = AnswerUpload(UploadId(1), LeaseId(1), 0, True, "")
    oracle.coordinator_handled(event, [ISSUED], 5.0)
    oracle.deposed_handled("coordinator", event, [replace(answer, accepted=False)], 6.0)
    assert not oracle.violations
    oracle.deposed_handled("coordinator", event, [answer], 6.0)
    assert [one.rule for one in oracle.violations] == ["leader"]
