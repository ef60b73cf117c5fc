"""The worker's decisions: whole lists of actions, and promises that hold for any history."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from peer.worker_core import DRAIN_UPLOAD_S, FULL_BATCH_WAIT_S, SPOOL_BATCHES, Receiving, WorkerCore
from peer.worker_events import (
    Action,
    ActivateVersion,
    BatchGenerated,
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
    StopRequested,
    Tick,
    UploadAnswered,
    UploadFailed,
    UploadRollouts,
    Verdict,
    VersionActivated,
    VersionHeardOf,
    VersionLoaded,
    VersionVerified,
)
from rollcast.wire.ids import LeaseId
from rollcast.wire.rollouts import Rollout
from tests.peer.worker_samples import grant, key, rollout, work


def ready_core(concurrent_rollouts: int = 4) -> WorkerCore:
    """Connected, with version 0 active and work asked for."""
    core = WorkerCore(concurrent_rollouts=concurrent_rollouts)
    core.handle(SessionOpened(), 0.0)
    core.handle(VersionVerified(key(0)), 0.0)
    core.handle(VersionLoaded(key(0)), 0.0)
    core.handle(VersionActivated(key(0)), 0.0)
    return core


def accept(items: tuple[Rollout, ...]) -> tuple[Verdict, ...]:
    return tuple(Verdict(item.lease_id, item.sample_index, True, "") for item in items)


def test_the_first_version_is_loaded_then_activated_and_then_work_is_asked_for() -> None:
    core = WorkerCore(concurrent_rollouts=4)
    assert core.handle(SessionOpened(), 0.0) == []
    assert core.handle(VersionHeardOf(key(0)), 0.1) == []
    assert core.handle(VersionVerified(key(0)), 0.2) == [ReportVersionHeld(key(0)), LoadVersion(key(0))]
    assert core.handle(VersionLoaded(key(0)), 0.3) == [ActivateVersion(key(0))]
    assert core.handle(VersionActivated(key(0)), 0.4) == [RequestWork(8)]


def test_a_full_batch_starts_at_once_oldest_leases_first() -> None:
    core = ready_core()
    first, second, third = grant(1), grant(2), grant(3)
    actions = core.handle(LeasesGranted((first, second, third)), 1.0)
    assert actions == [GenerateBatch(1, work(first, second))]


def test_a_batch_that_is_not_full_waits_for_the_rest_of_the_burst() -> None:
    core = ready_core()
    lease = grant(1)
    assert core.handle(LeasesGranted((lease,)), 1.0) == []
    assert core.next_wake_s() == 1.0 + FULL_BATCH_WAIT_S
    assert core.handle(Tick(), 1.0 + FULL_BATCH_WAIT_S) == [GenerateBatch(1, work(lease))]


def test_finished_rollouts_are_uploaded_and_more_work_is_asked_for() -> None:
    core = ready_core()
    leases = (grant(1), grant(2))
    core.handle(LeasesGranted(leases), 1.0)
    made = tuple(rollout(item) for item in work(*leases))
    assert core.handle(BatchGenerated(1, made), 2.0) == [UploadRollouts(1, made), RequestWork(8)]
    assert core.handle(UploadAnswered(1, accept(made), 0.5), 2.1) == []
    assert (core.accepted, core.tokens_generated) == (4, 12)
    assert core.status(2.1).tokens_per_second == 1.2


def test_a_slot_of_a_lease_longer_than_a_batch_is_generated_once() -> None:
    core = ready_core(concurrent_rollouts=4)
    lease = grant(1, slots=6)
    (batch,) = core.handle(LeasesGranted((lease,)), 1.0)
    assert batch == GenerateBatch(1, work(lease)[:4])
    actions = core.handle(BatchGenerated(1, tuple(rollout(item) for item in work(lease)[:4])), 2.0)
    assert GenerateBatch(2, work(lease)[4:]) in actions
    assert core.handle(LeasesGranted((lease,)), 2.1) == [RequestWork(6)]


def test_a_new_version_is_loaded_meanwhile_and_swapped_between_two_batches() -> None:
    core = ready_core()
    first, second = (grant(1, 4), grant(2, 4))
    core.handle(LeasesGranted((first, second)), 1.0)
    assert core.handle(VersionVerified(key(1)), 1.1) == [ReportVersionHeld(key(1)), LoadVersion(key(1))]
    assert core.handle(VersionLoaded(key(1)), 1.2) == []
    made = tuple(rollout(item) for item in work(first))
    assert core.handle(BatchGenerated(1, made), 1.3) == [
        ActivateVersion(key(1)),
        UploadRollouts(1, made),
        RequestWork(4),
    ]
    assert core.handle(VersionActivated(key(1)), 1.4) == [GenerateBatch(2, work(second))]


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
    core.handle(VersionHeardOf(key(1)), 1.0)
    assert core.handle(LeasesGranted((lease,)), 1.0) == []
    assert core.status(1.0).reason == "1 leases need version 1 or newer; version 0 is active"
    core.handle(VersionVerified(key(1)), 1.1)
    core.handle(VersionLoaded(key(1)), 1.2)
    assert core.handle(VersionActivated(key(1)), 1.3) == [GenerateBatch(1, work(lease))]


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
    made = tuple(rollout(item) for item in work(lease))
    core.handle(Tick(), 3.5)
    assert UploadRollouts(1, made) in core.handle(BatchGenerated(1, made), 4.0)
    assert core.handle(UploadFailed(1, "unreachable", 0.5), 4.1) == []
    assert core.handle(Tick(), 5.0) == [RolloutsDropped("lease_expired", 4)]


def test_revoked_leases_are_forgotten_wherever_their_slots_are() -> None:
    core = ready_core()
    running, waiting = grant(1, 4), grant(2, 4)
    core.handle(LeasesGranted((running, waiting)), 1.0)
    assert core.handle(LeasesRevoked((LeaseId(1), LeaseId(2)), "run ended"), 1.1) == [
        RolloutsDropped("revoked", 8),
        RequestWork(8),
    ]
    made = tuple(rollout(item) for item in work(running))
    assert core.handle(BatchGenerated(1, made), 1.2) == [RolloutsDropped("given_up_while_generating", 4)]


def test_more_leases_than_can_be_held_are_given_back() -> None:
    core = ready_core(concurrent_rollouts=4)
    actions = core.handle(LeasesGranted(tuple(grant(index, 4) for index in range(1, 7))), 1.0)
    assert actions[0] == ReturnLeases((LeaseId(5), LeaseId(6)), "more than asked for")


def test_a_failed_upload_is_sent_again_after_its_backoff() -> None:
    core = ready_core()
    lease = grant(1, 4)
    core.handle(LeasesGranted((lease,)), 1.0)
    made = tuple(rollout(item) for item in work(lease))
    core.handle(BatchGenerated(1, made), 2.0)
    assert core.handle(UploadFailed(1, "unreachable", 0.5), 2.1) == []
    assert core.next_wake_s() == 2.6
    assert core.handle(Tick(), 2.6) == [UploadRollouts(2, made)]


def test_rollouts_met_by_busy_or_no_verdict_are_sent_again_and_refused_ones_counted() -> None:
    core = ready_core()
    lease = grant(1, 4)
    core.handle(LeasesGranted((lease,)), 1.0)
    made = tuple(rollout(item) for item in work(lease))
    core.handle(BatchGenerated(1, made), 2.0)
    verdicts = (
        Verdict(LeaseId(1), 0, True, ""),
        Verdict(LeaseId(1), 1, False, "fenced"),
        Verdict(LeaseId(1), 2, False, "busy"),
    )
    assert core.handle(UploadAnswered(1, verdicts, 0.5), 2.1) == [RolloutsDropped("fenced", 1)]
    assert core.handle(Tick(), 2.6) == [UploadRollouts(2, made[2:])]


def test_work_goes_on_while_the_coordinator_is_away_and_is_uploaded_when_it_is_back() -> None:
    core = ready_core()
    first, second = grant(1, 4), grant(2, 4)
    core.handle(LeasesGranted((first, second)), 1.0)
    assert core.handle(SessionLost("connection reset"), 1.1) == []
    made = tuple(rollout(item) for item in work(first))
    assert core.handle(BatchGenerated(1, made), 1.2) == [GenerateBatch(2, work(second))]
    actions = core.handle(SessionOpened(), 3.0)
    assert actions == [ReportVersionHeld(key(0)), UploadRollouts(1, made), RequestWork(4)]


def test_stopping_returns_leases_uploads_what_is_finished_and_ends() -> None:
    core = ready_core()
    lease, other = grant(1, 6), grant(2, 2)
    core.handle(LeasesGranted((lease, other)), 1.0)
    made = tuple(rollout(item) for item in work(lease)[:4])
    core.handle(BatchGenerated(1, made), 2.0)
    assert core.handle(StopRequested("stopped by a signal"), 2.1) == [
        RequestWork(0),
        ReturnLeases((LeaseId(2),), "stopping: stopped by a signal"),
    ]
    assert core.status(2.1).state == "draining"
    assert core.handle(LeasesGranted((grant(3),)), 2.2) == [ReturnLeases((LeaseId(3),), "stopping")]
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
    core.handle(BatchGenerated(1, tuple(rollout(item) for item in work(lease))), 2.0)
    core.handle(StopRequested("stopped by a signal"), 3.0)
    assert core.next_wake_s() == 3.0 + DRAIN_UPLOAD_S
    actions = core.handle(Tick(), 3.0 + DRAIN_UPLOAD_S)
    assert actions == [RolloutsDropped("stopped", 4), Finish("stopped by a signal")]


def test_the_state_is_said_in_words() -> None:
    core = WorkerCore(concurrent_rollouts=4)

    def said(receiving: Receiving | None = None) -> tuple[str, str]:
        status = core.status(0.0, receiving)
        return status.state, status.reason

    assert said() == ("starting", "waiting for the first version to be announced")
    core.handle(VersionHeardOf(key(0)), 0.0)
    assert said() == ("starting", "waiting for the chunks of version 0")
    assert said(Receiving(0, 3, 40)) == ("receiving", "version 0: 3 of 40 chunks")
    core.handle(VersionVerified(key(0)), 0.0)
    assert said() == ("starting", "loading version 0 and compiling")
    core.handle(VersionLoaded(key(0)), 0.0)
    core.handle(VersionActivated(key(0)), 0.0)
    assert said() == ("idle", "the coordinator is away: not reached yet")
    core.handle(SessionOpened(), 0.0)
    assert said() == ("idle", "no lease; waiting for the coordinator's pacing")
    core.handle(LeasesGranted((grant(1, 4),)), 0.0)
    assert said() == ("generating", "4 rollouts with version 0")


class WorkerHistory(RuleBasedStateMachine):
    """Any order of leases, expiries, versions, verdicts and losses of the coordinator."""

    def __init__(self) -> None:
        super().__init__()
        self.core = WorkerCore(concurrent_rollouts=4)
        self.now = 0.0
        self.next_lease_id = 1
        self.connected = False
        self.generated: Counter[tuple[int, int]] = Counter()
        self.batch: GenerateBatch | None = None
        self.loading: list[Any] = []
        self.active_versions: list[int] = []
        self.uploads: dict[int, tuple[Rollout, ...]] = {}
        self.given: set[tuple[int, int]] = set()

    def tell(self, event: Any) -> None:
        for action in self.core.handle(event, self.now):
            self.obey(action)

    def obey(self, action: Action) -> None:
        match action:
            case GenerateBatch(_, items):
                assert self.batch is None, "one batch at a time"
                assert len(items) <= 4
                self.generated.update((item.lease.lease_id, item.slot.sample_index) for item in items)
                for item in items:
                    assert item.lease.oldest_useful_version <= self.active_versions[-1]
                self.batch = action
            case UploadRollouts(upload_id, rollouts):
                assert self.connected
                assert upload_id not in self.uploads
                self.uploads[upload_id] = rollouts
            case LoadVersion() | ActivateVersion():
                assert not (isinstance(action, ActivateVersion) and self.batch), "swapped inside a batch"
                self.loading.append(action)
            case RequestWork(free_slots):
                assert self.connected
                assert 0 <= free_slots <= 8
            case _:
                pass

    @rule(count=st.integers(1, 4), slots=st.integers(1, 5), ahead=st.integers(0, 2), deadline_s=st.floats(0.1, 5.0))
    def grant_leases(self, count: int, slots: int, ahead: int, deadline_s: float) -> None:
        newest = self.active_versions[-1] if self.active_versions else 0
        ids = range(self.next_lease_id, self.next_lease_id + count)
        self.next_lease_id += count
        leases = tuple(
            grant(lease_id, slots, oldest_useful=max(0, newest - 1 + ahead), deadline_s=deadline_s) for lease_id in ids
        )
        self.tell(LeasesGranted(leases))

    @precondition(lambda self: self.next_lease_id > 1)
    @rule(data=st.data())
    def grant_a_lease_again(self, data: st.DataObject) -> None:
        self.tell(LeasesGranted((grant(data.draw(st.integers(1, self.next_lease_id - 1))),)))

    @precondition(lambda self: self.next_lease_id > 1)
    @rule(data=st.data())
    def revoke(self, data: st.DataObject) -> None:
        lease_id = data.draw(st.integers(1, self.next_lease_id - 1))
        self.tell(LeasesRevoked((LeaseId(lease_id),), "test"))

    @rule(version=st.integers(0, 20))
    def verify_version(self, version: int) -> None:
        self.tell(VersionVerified(key(version)))

    @precondition(lambda self: self.loading)
    @rule()
    def load_or_activate(self) -> None:
        action = self.loading.pop(0)
        if isinstance(action, LoadVersion):
            self.tell(VersionLoaded(action.key))
            return
        assert not self.active_versions or action.key.version > self.active_versions[-1]
        self.active_versions.append(action.key.version)
        self.tell(VersionActivated(action.key))

    @precondition(lambda self: self.batch is not None)
    @rule()
    def finish_batch(self) -> None:
        batch, self.batch = self.batch, None
        assert batch is not None
        made = tuple(rollout(item, self.active_versions[-1]) for item in batch.work)
        self.tell(BatchGenerated(batch.batch_id, made))

    @precondition(lambda self: self.uploads)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        upload_id = data.draw(st.sampled_from(sorted(self.uploads)))
        rollouts = self.uploads.pop(upload_id)
        reasons = st.sampled_from(["", "fenced", "busy", "silence"])
        verdicts = []
        for item in rollouts:
            reason = data.draw(reasons)
            if reason != "silence":
                verdicts.append(Verdict(item.lease_id, item.sample_index, reason == "", reason))
            if reason in ("", "fenced"):
                slot = (item.lease_id, item.sample_index)
                assert slot not in self.given, "uploaded again after its verdict"
                self.given.add(slot)
        self.tell(UploadAnswered(upload_id, tuple(verdicts), 0.2))

    @precondition(lambda self: self.uploads)
    @rule()
    def fail_upload(self) -> None:
        upload_id = next(iter(self.uploads))
        del self.uploads[upload_id]
        self.tell(UploadFailed(upload_id, "test", 0.2))

    @rule(connected=st.booleans())
    def connect(self, connected: bool) -> None:
        if connected != self.connected:
            self.connected = connected
            self.tell(SessionOpened() if connected else SessionLost("test"))

    @rule(seconds=st.floats(0.0, 3.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.tell(Tick())

    @invariant()
    def no_slot_is_generated_twice(self) -> None:
        assert all(count == 1 for count in self.generated.values())

    @invariant()
    def every_generated_slot_is_somewhere(self) -> None:
        running = len(self.batch.work) if self.batch else 0
        after_generation = {"lease_expired", "revoked", "fenced", "given_up_while_generating"}
        dropped = sum(count for reason, count in self.core.dropped.items() if reason in after_generation)
        kept = len(self.core._spool)
        finished = self.generated.total() - running
        assert self.core.accepted + kept <= finished <= self.core.accepted + kept + dropped

    @invariant()
    def what_is_held_is_bounded(self) -> None:
        assert self.core._book.unfinished <= 16
        assert len(self.core._spool) <= 4 * SPOOL_BATCHES

    @invariant()
    def verdicts_and_counts_agree(self) -> None:
        assert self.core.accepted + self.core.dropped["fenced"] == len(self.given)


TestWorkerHistory = WorkerHistory.TestCase
TestWorkerHistory.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
