"""Test a worker while a batch is generated: slices, partial results, prefixes, version changes, drains."""

from __future__ import annotations

import pytest

from peer.worker.core.core import DRAIN_SLICE_S, DRAIN_UPLOAD_S
from peer.worker.core.events import (
    ActivateVersion,
    ContinueBatch,
    EndBatch,
    Finish,
    FinishRequested,
    GenerateBatch,
    LeasesGranted,
    ReportVersionHeld,
    RequestWork,
    Rest,
    ReturnLeases,
    RolloutsDropped,
    SendPartials,
    SessionLost,
    SessionOpened,
    SliceGenerated,
    StopRequested,
    Tick,
    UploadAnswered,
    UploadRollouts,
    VersionActivated,
    VersionLoaded,
    VersionVerified,
)
from peer.worker.core.pacing import PARTIALS_AT_ONCE_MAX
from peer.worker.core.spool import ROLLOUT_BYTES, TOKEN_BYTES
from rollcast.wire.ids import LeaseId
from rollcast.wire.rollouts import FinishReason
from rollcast.wire.version_swap import AtVersionSwap
from tests.peer.worker.core.worker_samples import (
    SLICE,
    accept,
    begun,
    drawn,
    finished,
    grant,
    key,
    put_version,
    ready_core,
    rollout,
    segment,
    work,
)

REASONS: tuple[FinishReason, ...] = ("stop", "length")


def test_a_batch_is_generated_slice_by_slice_and_finished_rollouts_uploaded_at_once() -> None:
    core = ready_core()
    lease = grant(1, 4)
    items = work(lease)
    core.handle(LeasesGranted((lease,)), 1.0)
    news = (drawn(items[0]), *(drawn(item, (3, 4), None) for item in items[1:]))
    assert core.handle(SliceGenerated(1, news), 2.0) == [
        ContinueBatch(1, SLICE),
        UploadRollouts(1, (rollout(items[0]),)),
        RequestWork(5),
    ]
    made = tuple(rollout(item, segment((3, 4, 9, 1)), generate_s=2.0) for item in items[1:])
    last = SliceGenerated(1, tuple(drawn(item, (9, 1)) for item in items[1:]))
    assert core.handle(last, 3.0) == [EndBatch(1), UploadRollouts(2, made), RequestWork(8)]


def test_slices_are_shorter_where_tokens_come_slowly() -> None:
    core = ready_core(slice_tokens=100, slice_s=0.5)
    lease = grant(1, 4)
    core.handle(LeasesGranted((lease,)), 1.0)
    assert core.handle(begun(1, work(lease), (3,) * 100), 5.0) == [ContinueBatch(1, 12)]
    assert core.handle(begun(1, work(lease), (3,) * 12), 5.125) == [ContinueBatch(1, 48)]


def test_running_rollouts_are_reported_at_each_interval_and_short_ones_never() -> None:
    core = ready_core(opened=SessionOpened(partial_interval_s=5.0))
    lease = grant(1, 4)
    items = work(lease)
    core.handle(LeasesGranted((lease,)), 1.0)
    assert core.handle(begun(1, items), 5.9) == [ContinueBatch(1, SLICE)]
    first, second = core.handle(begun(1, items), 6.0)
    assert isinstance(first, SendPartials)
    assert [(item.sample_index, item.position, item.segments) for item in first.partials] == [
        (index, 0, (segment((3, 4, 3, 4)),)) for index in range(4)
    ]
    assert second == ContinueBatch(1, SLICE)
    assert core.handle(begun(1, items), 7.0) == [ContinueBatch(1, SLICE)]
    again = core.handle(begun(1, items), 11.0)[0]
    assert isinstance(again, SendPartials)
    assert [(item.position, item.segments) for item in again.partials] == [(4, (segment((3, 4, 3, 4)),))] * 4


def test_large_batches_are_reported_less_often() -> None:
    core = ready_core(opened=SessionOpened(partial_interval_s=1.0), concurrent_rollouts=300)
    items = work(grant(1, 300))
    core.handle(LeasesGranted((grant(1, 300),)), 0.0)
    (told, _) = core.handle(begun(1, items, (3,)), 1.0)
    assert isinstance(told, SendPartials)
    assert len(told.partials) == PARTIALS_AT_ONCE_MAX
    assert core.handle(begun(1, items, (3,)), 6.0) == [ContinueBatch(1, SLICE)]
    (told, _) = core.handle(begun(1, items, (3,)), 6.5)
    assert isinstance(told, SendPartials)
    assert [item.position for item in told.partials][:45] == [0] * 44 + [1]


def test_a_reconnected_coordinator_gets_all_partials_again() -> None:
    opened = SessionOpened(partial_interval_s=5.0)
    core = ready_core(opened=opened)
    lease = grant(1, 4, prefix=(segment((8, 9)),))
    core.handle(LeasesGranted((lease,)), 1.0)
    (told, _) = core.handle(begun(1, work(lease)), 6.0)
    assert isinstance(told, SendPartials)
    assert {(item.position, len(item.segments[0].token_ids)) for item in told.partials} == {(2, 2)}
    core.handle(SessionLost("reset"), 7.0)
    assert core.handle(begun(1, work(lease)), 20.0) == [ContinueBatch(1, SLICE)]
    core.handle(opened, 21.0)
    assert core.handle(begun(1, work(lease)), 25.9) == [ContinueBatch(1, SLICE)]
    (told, _) = core.handle(begun(1, work(lease)), 26.0)
    assert isinstance(told, SendPartials)
    assert {(item.position, len(item.segments[0].token_ids)) for item in told.partials} == {(2, 8)}


def test_an_attempt_continues_after_its_unchanged_prefix() -> None:
    core = ready_core()
    prefix = (segment((8, 9), version=0),)
    lease = grant(1, 4, prefix=prefix)
    assert core.handle(LeasesGranted((lease,)), 1.0) == [GenerateBatch(1, work(lease), SLICE)]
    actions = core.handle(finished(1, work(lease)), 2.0)
    made = tuple(rollout(item, *prefix, segment((3, 4, 1))) for item in work(lease))
    assert UploadRollouts(1, made) in actions


def test_a_complete_prefix_is_a_rollout_without_generation() -> None:
    core = ready_core()
    stopped, full = (segment((8, 1)),), (segment((8,) * 8),)
    leases = (grant(1, 1, prefix=stopped), grant(2, 1, prefix=full))
    made = tuple(
        rollout(item, *item.slot.prefix, reason=reason, generate_s=0.0)
        for item, reason in zip(work(*leases), REASONS, strict=True)
    )
    assert core.handle(LeasesGranted(leases), 1.0) == [UploadRollouts(1, made), RequestWork(8)]


def test_leases_of_a_past_epoch_or_with_its_tokens_are_returned() -> None:
    core = ready_core()
    put_version(core, 9, 0.0, epoch=1)
    mixed = grant(1, 2, epoch=1, prefix=(segment((8, 9), version=8),))
    old = grant(2, 2, epoch=1, oldest_useful=7, prefix=(segment((8, 9), version=6, epoch=1),))
    assert core.handle(LeasesGranted((mixed, old, grant(3))), 1.0) == [
        ReturnLeases((LeaseId(1), LeaseId(2)), "their prefixes are of another epoch or too old"),
        ReturnLeases((LeaseId(3),), "their epoch is over"),
        RequestWork(8),
    ]


def test_waiting_slots_replace_finished_rollouts() -> None:
    core = ready_core()
    first, second = grant(1, 4), grant(2, 4)
    items = work(first)
    core.handle(LeasesGranted((first, second)), 1.0)
    news = (drawn(items[0]), *(drawn(item, (3, 4), None) for item in items[1:]))
    assert core.handle(SliceGenerated(1, news), 2.0)[0] == ContinueBatch(1, SLICE, more=work(second)[:1])
    actions = core.handle(finished(1, work(second)[:1]), 5.0)
    assert UploadRollouts(2, (rollout(work(second)[0], generate_s=3.0),)) in actions  # counted from when it began
    assert actions[0] == ContinueBatch(1, SLICE, more=work(second)[1:2])


def test_nothing_is_added_to_a_batch_that_has_to_end_for_a_newer_version() -> None:
    core = ready_core()
    first, second = grant(1, 4), grant(2, 4)
    core.handle(LeasesGranted((first, second)), 1.0)
    core.handle(VersionVerified(key(1)), 1.1)
    core.handle(VersionLoaded(key(1)), 1.2)
    news = (drawn(work(first)[0]), *(drawn(item, (3, 4), None) for item in work(first)[1:]))
    assert ContinueBatch(1, SLICE) in core.handle(SliceGenerated(1, news), 2.0)


@pytest.mark.parametrize("mode", ["continue", "keep"])
def test_a_running_batch_continues_with_a_new_version_where_the_run_allows_it(mode: AtVersionSwap) -> None:
    core = ready_core(opened=SessionOpened(at_version_swap=mode))
    lease = grant(1, 4)
    core.handle(LeasesGranted((lease,)), 1.0)
    core.handle(VersionVerified(key(1)), 1.1)
    assert core.handle(VersionLoaded(key(1)), 1.2) == []
    assert core.handle(begun(1, work(lease)), 2.0) == [ActivateVersion(key(1))]
    assert core.handle(VersionActivated(key(1)), 2.1) == [ContinueBatch(1, SLICE, renew=mode)]
    assert core.handle(begun(1, work(lease), version=1), 2.2) == [ContinueBatch(1, SLICE)]
    actions = core.handle(finished(1, work(lease), version=1), 3.0)
    made = tuple(rollout(item, segment((3, 4)), segment((3, 4, 3, 4, 1), 1), generate_s=2.0) for item in work(lease))
    assert UploadRollouts(1, made) in actions


def test_a_running_batch_ends_on_its_version_where_the_run_requires_it() -> None:
    core = ready_core()
    lease = grant(1, 4)
    core.handle(LeasesGranted((lease,)), 1.0)
    core.handle(VersionVerified(key(1)), 1.1)
    core.handle(VersionLoaded(key(1)), 1.2)
    assert core.handle(begun(1, work(lease)), 2.0) == [ContinueBatch(1, SLICE)]


def test_rollouts_begin_with_a_newer_version_while_others_finish_where_the_engine_has_both() -> None:
    core = ready_core()
    first, second, third = grant(1, 4), grant(2, 2), grant(3, 2)
    core.handle(LeasesGranted((first,)), 1.0)
    core.handle(VersionVerified(key(1)), 1.1)
    core.handle(VersionLoaded(key(1)), 1.2)
    running = tuple(drawn(item, (3, 4), None) for item in work(first)[2:])
    ended = tuple(drawn(item) for item in work(first)[:2])
    core.handle(LeasesGranted((second,)), 1.3)
    assert core.handle(SliceGenerated(1, ended + running, 1), 2.0)[0] == ActivateVersion(key(1))
    more = work(second)
    assert core.handle(VersionActivated(key(1)), 2.1) == [ContinueBatch(1, SLICE, renew="finish", more=more)]
    # Version 2 waits until version 0 has ended, and meanwhile rollouts begin with version 1.
    core.handle(VersionVerified(key(2)), 2.2)
    core.handle(VersionLoaded(key(2)), 2.3)
    core.handle(LeasesGranted((third,)), 2.4)
    news = tuple(drawn(item, version=1) for item in more) + running
    assert core.handle(SliceGenerated(1, news, 0), 3.0)[0] == ContinueBatch(1, SLICE, more=work(third))
    rest = tuple(drawn(item, (3, 4), None, version=1) for item in work(third))
    actions = core.handle(SliceGenerated(1, tuple(drawn(item) for item in work(first)[2:]) + rest, 1), 4.0)
    assert ActivateVersion(key(2)) in actions
    assert core.handle(VersionActivated(key(2)), 4.1) == [ContinueBatch(1, SLICE, renew="finish")]


def test_a_rule_that_changes_before_the_swap_does_not_ask_for_what_the_engine_cannot_do() -> None:
    core = ready_core(opened=SessionOpened(at_version_swap="continue"))
    core.handle(LeasesGranted((grant(1, 4),)), 1.0)
    core.handle(VersionVerified(key(1)), 1.1)
    core.handle(VersionLoaded(key(1)), 1.2)
    assert core.handle(begun(1, work(grant(1, 4))), 2.0) == [ActivateVersion(key(1))]
    core.handle(SessionOpened(at_version_swap="finish"), 2.1)
    assert core.handle(VersionActivated(key(1)), 2.2) == [ContinueBatch(1, SLICE, renew="continue")]


def test_a_new_epoch_ends_running_rollouts_of_the_old_one() -> None:
    core = ready_core(opened=SessionOpened(at_version_swap="continue"))
    lease = grant(1, 4)
    core.handle(LeasesGranted((lease,)), 1.0)
    core.handle(VersionVerified(key(5, epoch=1)), 1.1)
    core.handle(VersionLoaded(key(5, epoch=1)), 1.2)
    core.handle(begun(1, work(lease)), 2.0)
    reason = "no version here is useful for them: version 5 is active"
    assert core.handle(VersionActivated(key(5, epoch=1)), 2.1) == [
        ReturnLeases((LeaseId(1),), reason),
        EndBatch(1),
        RequestWork(8),
    ]


def test_a_drain_uploads_the_tokens_of_the_running_slice_as_interrupted() -> None:
    core = ready_core()
    lease, waiting = grant(1, 4), grant(2, 4)
    items = work(lease)
    core.handle(LeasesGranted((lease, waiting)), 1.0)
    core.handle(begun(1, items), 2.0)
    assert core.handle(StopRequested("signal"), 2.1) == [ReturnLeases((LeaseId(2),), "stopping: signal")]
    assert core.next_wake_s() == 2.1 + DRAIN_SLICE_S
    parts = tuple(
        rollout(item, segment((3, 4, 3, 4)), reason="interrupted", generate_s=2.5 - 1.0) for item in items[1:]
    )
    made = (rollout(items[0], segment((3, 4, 3, 4, 1)), generate_s=2.5 - 1.0), *parts)
    last = SliceGenerated(1, (drawn(items[0]), *(drawn(item, (3, 4), None) for item in items[1:])))
    assert core.handle(last, 2.5) == [EndBatch(1), UploadRollouts(1, made)]
    assert core.handle(UploadAnswered(1, accept(made), 0.5), 2.6) == [
        RolloutsDropped("interrupted", 3),
        Finish("signal"),
    ]
    assert core.accepted == 1


def test_a_drain_does_not_wait_for_a_slice_that_does_not_end() -> None:
    core = ready_core()
    lease = grant(1, 4)
    core.handle(LeasesGranted((lease,)), 1.0)
    core.handle(begun(1, work(lease)), 2.0)
    core.handle(StopRequested("signal"), 3.0)
    parts = tuple(rollout(item, segment((3, 4)), reason="interrupted", generate_s=2.75) for item in work(lease))
    assert core.handle(Tick(), 3.75) == [EndBatch(1), UploadRollouts(1, parts)]
    assert core.handle(begun(1, work(lease)), 3.8) == []
    assert core.next_wake_s() == 3.0 + DRAIN_UPLOAD_S


def test_a_drain_returns_leases_without_tokens() -> None:
    core = ready_core()
    core.handle(LeasesGranted((grant(1, 4),)), 1.0)
    assert core.handle(StopRequested("signal"), 1.1) == [RequestWork(0)]
    returned = ReturnLeases((LeaseId(1),), "stopping: signal")
    assert core.handle(Tick(), 1.1 + DRAIN_SLICE_S) == [EndBatch(1), returned, Finish("signal")]


def test_a_drain_without_a_coordinator_ends_at_once() -> None:
    core = ready_core()
    core.handle(LeasesGranted((grant(1, 4),)), 1.0)
    core.handle(SessionLost("reset"), 1.1)
    assert core.handle(StopRequested("signal"), 1.2) == [Finish("signal")]
    assert core.dropped == {"returned": 4}


def test_no_batch_begins_while_finished_rollouts_fill_their_memory() -> None:
    core = ready_core(spool_bytes_max=4 * (ROLLOUT_BYTES + 3 * TOKEN_BYTES))
    first, second = grant(1, 4), grant(2, 4)
    core.handle(LeasesGranted((first, second)), 1.0)
    core.handle(SessionLost("reset"), 1.5)
    assert core.handle(finished(1, work(first)), 2.0) == [EndBatch(1)]
    made = tuple(rollout(item) for item in work(first))
    assert core.handle(SessionOpened(), 3.0) == [ReportVersionHeld(key(0)), UploadRollouts(1, made)]
    assert core.status(3.0).reason == "4 finished rollouts wait for the coordinator's verdict"
    assert core.handle(UploadAnswered(1, accept(made), 0.5), 3.1) == [
        GenerateBatch(2, work(second), SLICE),
        RequestWork(4),
    ]


def test_a_resting_worker_returns_its_leases_after_its_slice_and_resumes_later() -> None:
    core = ready_core()
    lease, other = grant(1, 4), grant(2, 2)
    core.handle(LeasesGranted((lease, other)), 1.0)
    assert core.handle(Rest("hot"), 2.0) == [RequestWork(0)]
    assert core.next_wake_s() == 2.0 + DRAIN_SLICE_S
    assert core.handle(LeasesGranted((grant(3),)), 2.1) == [ReturnLeases((LeaseId(3),), "resting: hot")]
    ended = SliceGenerated(1, tuple(drawn(item, (3, 4), None) for item in work(lease)))
    end, returned, upload = core.handle(ended, 2.3)
    assert (end, returned) == (EndBatch(1), ReturnLeases((LeaseId(2),), "resting: hot"))
    assert isinstance(upload, UploadRollouts)
    assert {made.finish_reason for made in upload.rollouts} == {"interrupted"}, "another peer can go on with them"
    assert core.status(2.3).state == "resting"
    core.handle(UploadAnswered(upload.upload_id, accept(upload.rollouts), 0.5), 2.4)
    assert core.held_leases == []
    assert core.handle(Rest(""), 9.0) == [RequestWork(8)]
    assert core.handle(LeasesGranted((grant(4, 4),)), 9.1) == [GenerateBatch(2, work(grant(4, 4)), SLICE)]


def test_nothing_is_generated_or_swapped_during_an_abandoned_slice() -> None:
    core = ready_core()
    lease = grant(1, 4)
    core.handle(LeasesGranted((lease,)), 1.0)
    core.handle(Rest("paused by its owner", "paused"), 2.0)
    assert core.handle(Tick(), 2.0 + DRAIN_SLICE_S)[0] == EndBatch(1)
    core.handle(Rest(""), 3.0)
    assert core.handle(LeasesGranted((grant(2, 4),)), 3.1) == [], "the engine still draws the slice"
    core.handle(VersionVerified(key(1)), 3.2)
    assert core.handle(VersionLoaded(key(1)), 3.3) == []
    assert core.handle(SliceGenerated(1, ()), 3.4) == [ActivateVersion(key(1))]
    assert core.handle(VersionActivated(key(1)), 3.5) == [GenerateBatch(2, work(grant(2, 4)), SLICE)]


def test_a_finishing_worker_completes_its_leases_and_ends() -> None:
    core = ready_core()
    lease, other = grant(1, 4), grant(2, 2)
    core.handle(LeasesGranted((lease, other)), 1.0)
    assert core.handle(FinishRequested("its owner asked it to finish"), 2.0) == [RequestWork(0)]
    assert core.status(2.0).reason == "its owner asked it to finish; 6 rollouts left"
    end, generate, upload = core.handle(finished(1, work(lease)), 3.0)
    assert (end, generate) == (EndBatch(1), GenerateBatch(2, work(other), SLICE))
    assert isinstance(upload, UploadRollouts)
    core.handle(UploadAnswered(upload.upload_id, accept(upload.rollouts), 0.5), 3.1)
    _, last = core.handle(finished(2, work(other)), 4.0)
    assert isinstance(last, UploadRollouts)
    assert core.handle(UploadAnswered(last.upload_id, accept(last.rollouts), 0.5), 4.1) == [
        Finish("its owner asked it to finish")
    ]
    assert core.finished


def test_a_worker_that_finished_for_a_while_takes_work_again() -> None:
    core = ready_core()
    core.handle(FinishRequested("back at noon", ends=False), 2.0)
    assert core.status(2.0).state == "finishing"
    assert core.handle(FinishRequested(""), 3.0) == [RequestWork(8)]
