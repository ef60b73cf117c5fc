"""Test the worker's decisions: whole lists of actions, and invariants for any history."""

from __future__ import annotations

from peer.worker.core.core import DRAIN_UPLOAD_S, WorkerCore
from peer.worker.core.events import (
    ActivateVersion,
    ActivationChanged,
    EndBatch,
    Finish,
    GenerateBatch,
    LeasesGranted,
    LeasesRevoked,
    LoadVersion,
    ReportVersionHeld,
    RequestWork,
    ReturnLeases,
    RolloutsDropped,
    SessionLost,
    SessionOpened,
    SliceGenerated,
    StopRequested,
    Tick,
    UploadAnswered,
    UploadFailed,
    UploadRollouts,
    Verdict,
    VersionActivated,
    VersionAnnounced,
    VersionLoaded,
    VersionVerified,
)
from peer.worker.core.pacing import FULL_BATCH_WAIT_S
from peer.worker.core.status import Receiving
from rollcast.wire.ids import LeaseId
from tests.peer.worker.core.worker_samples import SLICE, accept, begun, finished, grant, key, ready_core, rollout, work


def test_the_first_version_is_loaded_then_activated_and_then_work_is_requested() -> None:
    core = WorkerCore(concurrent_rollouts=4)
    assert core.handle(SessionOpened(), 0.0) == []
    assert core.handle(VersionAnnounced(key(0)), 0.1) == []
    assert core.handle(VersionVerified(key(0)), 0.2) == [ReportVersionHeld(key(0)), LoadVersion(key(0))]
    assert core.handle(VersionLoaded(key(0)), 0.3) == [ActivateVersion(key(0))]
    assert core.handle(VersionActivated(key(0)), 0.4) == [RequestWork(8)]


def test_a_full_batch_starts_at_once_oldest_leases_first() -> None:
    core = ready_core()
    first, second, third = grant(1), grant(2), grant(3)
    actions = core.handle(LeasesGranted((first, second, third)), 1.0)
    assert actions == [GenerateBatch(1, work(first, second), SLICE)]


def test_a_batch_that_is_not_full_waits_for_the_rest_of_the_burst() -> None:
    core = ready_core()
    lease = grant(1)
    assert core.handle(LeasesGranted((lease,)), 1.0) == []
    assert core.next_wake_s() == 1.0 + FULL_BATCH_WAIT_S
    assert core.handle(Tick(), 1.0 + FULL_BATCH_WAIT_S) == [GenerateBatch(1, work(lease), SLICE)]


def test_finished_rollouts_are_uploaded_and_more_work_is_requested() -> None:
    core = ready_core()
    leases = (grant(1), grant(2))
    core.handle(LeasesGranted(leases), 1.0)
    made = tuple(rollout(item) for item in work(*leases))
    assert core.handle(finished(1, work(*leases)), 2.0) == [EndBatch(1), UploadRollouts(1, made), RequestWork(8)]
    assert core.handle(UploadAnswered(1, accept(made), 0.5), 2.1) == []
    assert core.accepted == 4
    assert (core.status(2.1).tokens_generated, core.status(2.1).tokens_per_second) == (12, 1.2)


def test_a_slot_of_a_lease_longer_than_a_batch_is_generated_once() -> None:
    core = ready_core()
    lease = grant(1, slots=6)
    (batch,) = core.handle(LeasesGranted((lease,)), 1.0)
    assert batch == GenerateBatch(1, work(lease)[:4], SLICE)
    core.handle(finished(1, work(lease)[:4]), 2.0)
    assert core.next_wake_s() == 2.05  # until then the coordinator may fill it up
    assert core.handle(Tick(), 2.05) == [GenerateBatch(2, work(lease)[4:], SLICE)]
    assert core.handle(LeasesGranted((lease,)), 2.1) == [RequestWork(6)]


def test_a_new_version_is_loaded_meanwhile_and_swapped_between_two_batches() -> None:
    core = ready_core()
    first, second = (grant(1, 4), grant(2, 4))
    core.handle(LeasesGranted((first, second)), 1.0)
    assert core.handle(VersionVerified(key(1)), 1.1) == [ReportVersionHeld(key(1)), LoadVersion(key(1))]
    assert core.handle(VersionLoaded(key(1)), 1.2) == []
    made = tuple(rollout(item, generate_s=1.5 - 1.0) for item in work(first))
    assert core.handle(finished(1, work(first)), 1.5) == [
        EndBatch(1),
        ActivateVersion(key(1)),
        UploadRollouts(1, made),
        RequestWork(4),
    ]
    assert core.handle(VersionActivated(key(1)), 1.6) == [GenerateBatch(2, work(second), SLICE)]


def test_versions_that_pile_up_while_loading_are_skipped() -> None:
    core = WorkerCore(concurrent_rollouts=4)
    core.handle(VersionVerified(key(1)), 0.0)
    assert core.handle(VersionVerified(key(2)), 0.0) == []
    assert core.handle(VersionVerified(key(3)), 0.0) == []
    assert core.handle(VersionLoaded(key(1)), 0.1) == [ActivateVersion(key(1))]
    assert core.handle(VersionActivated(key(1)), 0.1) == [LoadVersion(key(3))]


def test_an_older_version_is_reported_but_never_loaded() -> None:
    core = ready_core()
    core.handle(VersionVerified(key(5)), 1.0)
    core.handle(VersionLoaded(key(5)), 1.0)
    core.handle(VersionActivated(key(5)), 1.0)
    assert core.handle(VersionVerified(key(3)), 1.1) == [ReportVersionHeld(key(3))]


def test_a_lease_for_a_newer_version_is_kept_until_that_version_is_active() -> None:
    core = ready_core()
    lease = grant(1, 4, oldest_useful=1)
    core.handle(VersionAnnounced(key(1)), 1.0)
    assert core.handle(LeasesGranted((lease,)), 1.0) == []
    assert core.status(1.0).reason == "1 leases need version 1 or newer; version 0 is active"
    core.handle(VersionVerified(key(1)), 1.1)
    core.handle(VersionLoaded(key(1)), 1.2)
    assert core.handle(VersionActivated(key(1)), 1.3) == [GenerateBatch(1, work(lease), SLICE)]


def test_a_lease_that_no_known_version_can_serve_is_returned() -> None:
    core = ready_core()
    core.handle(LeasesGranted((grant(1, 4, oldest_useful=9),)), 1.0)
    core.handle(VersionVerified(key(1)), 1.1)
    core.handle(VersionLoaded(key(1)), 1.2)
    reason = "no version here is useful for them: version 1 is active"
    assert core.handle(VersionActivated(key(1)), 1.3) == [ReturnLeases((LeaseId(1),), reason), RequestWork(8)]


def test_slots_not_begun_at_the_leases_end_are_dropped_and_counted() -> None:
    core = ready_core()
    core.handle(LeasesGranted((grant(1, 4), grant(2, 4, deadline_s=2.0))), 1.0)
    assert core.next_wake_s() == 3.0
    assert core.handle(Tick(), 3.0) == [RolloutsDropped("lease_expired", 4), RequestWork(4)]
    assert core.dropped == {"lease_expired": 4}


def test_a_rollout_finished_after_its_lease_ended_is_still_offered_for_one_period() -> None:
    core = ready_core()
    lease = grant(1, 4, deadline_s=2.0)
    core.handle(LeasesGranted((lease,)), 1.0)
    made = tuple(rollout(item, generate_s=3.0) for item in work(lease))
    core.handle(Tick(), 3.5)
    assert UploadRollouts(1, made) in core.handle(finished(1, work(lease)), 4.0)
    assert core.handle(UploadFailed(1, "unreachable", 0.5), 4.1) == []
    assert core.handle(Tick(), 5.0) == [RolloutsDropped("lease_expired", 4)]


def test_a_rollout_still_running_one_period_after_its_lease_ended_is_given_up() -> None:
    core = ready_core()
    lease = grant(1, 4, deadline_s=2.0)
    core.handle(LeasesGranted((lease,)), 1.0)
    assert core.next_wake_s() == 5.0
    assert core.handle(Tick(), 5.0) == [RolloutsDropped("lease_expired", 4), RequestWork(8)]
    assert core.handle(begun(1, work(lease)), 5.1) == [EndBatch(1)]


def test_revoked_leases_are_discarded_wherever_their_slots_are() -> None:
    core = ready_core()
    running, waiting = grant(1, 4), grant(2, 4)
    core.handle(LeasesGranted((running, waiting)), 1.0)
    assert core.handle(LeasesRevoked((LeaseId(1), LeaseId(2)), "run ended"), 1.1) == [
        RolloutsDropped("revoked", 8),
        RequestWork(8),
    ]
    assert core.handle(finished(1, work(running)), 1.2) == [EndBatch(1)]
    assert core.dropped == {"revoked": 8}


def test_surplus_leases_are_returned() -> None:
    core = ready_core()
    actions = core.handle(LeasesGranted(tuple(grant(index, 4) for index in range(1, 7))), 1.0)
    assert actions[0] == ReturnLeases((LeaseId(5), LeaseId(6)), "more than requested")


def test_a_failed_upload_is_sent_again_after_its_backoff() -> None:
    core = ready_core()
    lease = grant(1, 4)
    core.handle(LeasesGranted((lease,)), 1.0)
    made = tuple(rollout(item) for item in work(lease))
    core.handle(finished(1, work(lease)[:4]), 2.0)
    assert core.handle(UploadFailed(1, "unreachable", 0.5), 2.1) == []
    assert core.next_wake_s() == 2.6
    assert core.handle(Tick(), 2.6) == [UploadRollouts(2, made)]


def test_rollouts_with_busy_or_no_verdict_are_sent_again_and_refused_ones_counted() -> None:
    core = ready_core()
    lease = grant(1, 4)
    core.handle(LeasesGranted((lease,)), 1.0)
    made = tuple(rollout(item) for item in work(lease))
    core.handle(finished(1, work(lease)[:4]), 2.0)
    verdicts = (
        Verdict(LeaseId(1), 0, True, ""),
        Verdict(LeaseId(1), 1, False, "fenced"),
        Verdict(LeaseId(1), 2, False, "busy"),
    )
    assert core.handle(UploadAnswered(1, verdicts, 0.5), 2.1) == [RolloutsDropped("fenced", 1)]
    assert core.handle(Tick(), 2.6) == [UploadRollouts(2, made[2:])]


def test_work_continues_without_the_coordinator_and_is_uploaded_on_reconnection() -> None:
    core = ready_core()
    first, second = grant(1, 4), grant(2, 4)
    core.handle(LeasesGranted((first, second)), 1.0)
    assert core.handle(SessionLost("connection reset"), 1.1) == []
    made = tuple(rollout(item) for item in work(first))
    assert core.handle(finished(1, work(first)), 2.0) == [EndBatch(1), GenerateBatch(2, work(second), SLICE)]
    actions = core.handle(SessionOpened(), 3.0)
    assert actions == [ReportVersionHeld(key(0)), UploadRollouts(1, made), RequestWork(4)]


def test_stopping_returns_leases_uploads_what_is_finished_and_ends() -> None:
    core = ready_core()
    lease, other = grant(1, 6), grant(2, 2)
    core.handle(LeasesGranted((lease, other)), 1.0)
    made = tuple(rollout(item) for item in work(lease)[:4])
    core.handle(finished(1, work(lease)[:4]), 2.0)
    assert core.handle(StopRequested("stopped by a signal"), 2.1) == [RequestWork(0)]
    assert core.handle(SliceGenerated(2, ()), 2.1) == [
        EndBatch(2),
        ReturnLeases((LeaseId(2),), "stopping: stopped by a signal"),
    ]
    assert core.status(2.1).state == "draining"
    assert core.handle(LeasesGranted((grant(3),)), 2.2) == [
        ReturnLeases((LeaseId(3),), "stopping: stopped by a signal")
    ]
    assert core.handle(UploadAnswered(1, accept(made), 0.5), 2.3) == [
        ReturnLeases((LeaseId(1),), "stopping: stopped by a signal"),
        Finish("stopped by a signal"),
    ]
    assert core.finished
    assert core.next_wake_s() is None


def test_stopping_does_not_wait_for_a_coordinator_that_does_not_answer() -> None:
    core = ready_core()
    lease = grant(1, 4)
    core.handle(LeasesGranted((lease,)), 1.0)
    core.handle(finished(1, work(lease)), 2.0)
    core.handle(StopRequested("stopped by a signal"), 3.0)
    assert core.next_wake_s() == 3.0 + DRAIN_UPLOAD_S
    actions = core.handle(Tick(), 3.0 + DRAIN_UPLOAD_S)
    assert actions == [RolloutsDropped("stopped", 4), Finish("stopped by a signal")]


def test_the_state_is_reported_in_words() -> None:
    core = WorkerCore(concurrent_rollouts=4)

    def said(receiving: Receiving | None = None) -> tuple[str, str]:
        status = core.status(0.0, receiving)
        return status.state, status.reason

    assert said() == ("starting", "waiting for the first version to be announced")
    core.handle(VersionAnnounced(key(0)), 0.0)
    assert said() == ("starting", "waiting for the chunks of version 0")
    assert said(Receiving(0, 3, 40)) == ("receiving", "version 0: 3 of 40 chunks")
    core.handle(VersionVerified(key(0)), 0.0)
    assert said() == ("starting", "loading version 0 and compiling")
    core.handle(VersionLoaded(key(0)), 0.0)
    core.handle(VersionActivated(key(0)), 0.0)
    assert said() == ("idle", "no session with the coordinator: not reached yet")
    core.handle(SessionOpened(), 0.0)
    assert said() == ("idle", "nothing to do now: the learner has all it can use")
    core.handle(LeasesGranted((grant(1, 4),)), 0.0)
    assert said() == ("generating", "4 rollouts with version 0")


def test_on_standby_held_work_continues_and_the_reason_is_reported() -> None:
    core = ready_core()
    first, second = grant(1), grant(2)
    assert core.handle(LeasesGranted((first, second)), 1.0) == [GenerateBatch(1, work(first, second), SLICE)]
    assert core.handle(ActivationChanged(False, "off: too dear"), 1.1) == []
    assert core.status(1.1).state == "generating"
    idle = ready_core()
    idle.handle(ActivationChanged(False, "off: too dear"), 1.0)
    assert (idle.status(1.0).state, idle.status(1.0).reason) == ("standby", "off: too dear")
    idle.handle(ActivationChanged(True, "on: cheap"), 2.0)
    assert idle.status(2.0).state == "idle"


def test_standby_ends_with_the_session_unless_repeated() -> None:
    core = ready_core()
    core.handle(ActivationChanged(False, ""), 1.0)
    assert core.status(1.0).reason == "switched off"
    core.handle(SessionLost("gone"), 2.0)
    core.handle(SessionOpened(), 3.0)
    assert core.status(3.0).state == "idle"
