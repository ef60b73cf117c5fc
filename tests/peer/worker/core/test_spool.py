"""Test that finished rollouts are ready or in one upload to a scripted coordinator, and never lost before a verdict."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from peer.worker.core.events import Verdict
from peer.worker.core.spool import (
    ROLLOUT_BYTES,
    TOKEN_BYTES,
    UPLOAD_ROLLOUTS_MAX,
    UPLOAD_ROUTES_BYTES_MAX,
    UPLOADS_IN_FLIGHT_MAX,
    Spool,
    counted,
)
from peer.worker.uploads import in_messages
from rollcast.wire.ids import LeaseId
from rollcast.wire.limits import GRPC_MESSAGE_BYTES_MAX, ROUTES_BYTES_MAX
from rollcast.wire.rollouts import Rollout
from tests.peer.worker.core.worker_samples import grant, rollout, segment, work


def filled(count: int, *, gone_s: float = 100.0) -> tuple[Spool, list[Rollout]]:
    spool = Spool()
    rollouts = [rollout(item) for item in work(grant(1, slots=count))]
    for item in rollouts:
        spool.add(item, gone_s)
    return spool, rollouts


def verdict(index: int, reason: str = "") -> Verdict:
    return Verdict(LeaseId(1), index, not reason, reason)


def test_uploads_are_cut_to_size_and_few_are_in_flight() -> None:
    spool, rollouts = filled(3 * UPLOAD_ROLLOUTS_MAX)
    sent = []
    for _ in range(UPLOADS_IN_FLIGHT_MAX):
        upload = spool.start_upload(0.0)
        assert upload is not None
        sent += upload[1]
    assert sent == rollouts[: UPLOADS_IN_FLIGHT_MAX * UPLOAD_ROLLOUTS_MAX]
    assert spool.start_upload(0.0) is None
    assert len(spool) == 3 * UPLOAD_ROLLOUTS_MAX


def test_routes_are_counted_and_fit_into_uploads_and_messages() -> None:
    spool = Spool()
    one = replace(segment((3,) * 32_768), routes=bytes(ROUTES_BYTES_MAX))
    rollouts = [rollout(item, one) for item in work(grant(1, slots=3))]
    for item in rollouts:
        spool.add(item, 100.0)
    assert spool.size_bytes > 3 * ROUTES_BYTES_MAX
    assert spool.start_upload(0.0) == (1, tuple(rollouts[: -(-UPLOAD_ROUTES_BYTES_MAX // ROUTES_BYTES_MAX)]))
    messages = list(in_messages([rollout(work(grant(2))[0], segment((70_000,) * 60_000)), *rollouts]))
    assert sum(len(message.rollouts) for message in messages) == 4
    assert all(message.ByteSize() < GRPC_MESSAGE_BYTES_MAX for message in messages)


def test_only_final_verdicts_take_a_rollout_out() -> None:
    spool, rollouts = filled(3)
    spool.start_upload(0.0)
    final = spool.answered(1, [verdict(0), verdict(1, "busy"), verdict(7)], retry_at_s=2.0)
    assert final == [(rollouts[0], verdict(0))]
    assert spool.start_upload(1.9) is None
    assert spool.start_upload(2.0) == (2, tuple(rollouts[1:]))


def test_a_failed_upload_goes_first_next_time() -> None:
    spool, rollouts = filled(2)
    spool.start_upload(0.0)
    late = rollout(work(grant(2, slots=1))[0])
    spool.add(late, 100.0)
    spool.failed(1, retry_at_s=5.0)
    assert spool.next_wake_s() == 5.0
    spool.retry_now()
    assert spool.start_upload(0.0) == (2, (*rollouts, late))


def test_an_answer_for_an_unknown_upload_changes_nothing() -> None:
    spool, _ = filled(1)
    assert spool.answered(9, [verdict(0)], retry_at_s=5.0) == []
    assert spool.start_upload(0.0) is not None


def test_late_and_revoked_rollouts_are_dropped_unless_in_flight() -> None:
    spool, _ = filled(2, gone_s=10.0)
    assert spool.expire(9.9) == 0
    assert spool.expire(10.0) == 2
    spool, _ = filled(2, gone_s=10.0)
    spool.start_upload(0.0)
    assert (spool.expire(10.0), spool.revoke([LeaseId(1)])) == (0, 0)
    spool.failed(1, retry_at_s=11.0)
    assert spool.lease_ids() == {1}
    assert spool.revoke([LeaseId(1)]) == 2
    assert len(spool) == 0


def test_the_memory_of_rollouts_is_counted_until_they_leave() -> None:
    spool, _ = filled(4)
    each = ROLLOUT_BYTES + 3 * TOKEN_BYTES
    assert spool.size_bytes == 4 * each
    spool.start_upload(0.0)
    spool.answered(1, [verdict(0), verdict(1, "busy")], retry_at_s=2.0)
    assert spool.size_bytes == 3 * each
    spool.revoke([LeaseId(1)])
    assert spool.size_bytes == 0
    spool, _ = filled(2)
    spool.clear()
    assert spool.size_bytes == 0


def test_verdicts_are_counted_by_reason_and_interrupted_rollouts_apart() -> None:
    whole, other, cut = (rollout(item) for item in work(grant(1, slots=3)))
    answered = [
        (whole, verdict(0)),
        (other, verdict(1, "fenced")),
        (replace(cut, finish_reason="interrupted"), verdict(2)),
    ]
    assert counted(answered) == (1, Counter({"fenced": 1, "interrupted": 1}))
