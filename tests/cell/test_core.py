"""The decisions of a cell's uplink, as lists of actions."""

from __future__ import annotations

from dataclasses import replace

from peer.worker.core.events import (
    LeasesGranted,
    LeasesRevoked,
    ReportVersionHeld,
    RequestWork,
    ReturnLeases,
    SessionLost,
    SessionOpened,
    Tick,
    Verdict,
    VersionKey,
)
from rollcast.cell.core import (
    ANSWER_MAX_S,
    REPORT_S,
    CellAnswered,
    CellSize,
    Delivered,
    MemberJudged,
    Report,
    UplinkCore,
)
from rollcast.wire.ids import Epoch, FencingToken, GroupId, LeaseId, PeerId, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollouts import LeaseGrant, Sampling, Segment, Slot
from rollcast.wire.token_ids import pack_ids


def lease(number: int, *samples: int) -> LeaseGrant:
    return LeaseGrant(
        lease_id=LeaseId(number),
        fencing_token=FencingToken(number),
        group_id=GroupId(1),
        prompt_token_ids=(3,),
        slots=tuple(Slot(one, one) for one in samples),
        sampling=Sampling(1.0, 8, (1,)),
        deadline_s=30.0,
        epoch=Epoch(0),
        oldest_useful_version=Version(0),
    )


def answer(*leases: int, wanted: int = 8, lent: int = 0, version: int | None = 0) -> CellAnswered:
    has = version is not None
    return CellAnswered(
        pb.CellAnswer(
            workers=2,
            slots=4,
            slots_wanted=wanted,
            slots_lent=lent,
            leases=leases,
            has_version=has,
            version=version or 0,
        )
    )


def connected(*leases: int, lent: int = 0) -> UplinkCore:
    """Return an uplink with a session, whose cell has answered at 0 s."""
    core = UplinkCore()
    core.handle(answer(*leases, lent=lent), 0.0)
    core.handle(answer(*leases, lent=lent), 0.0)  # to the report that followed
    core.handle(SessionOpened(), 0.0)
    return core


def test_the_head_is_asked_for_what_the_cell_can_use_with_the_version_that_it_has() -> None:
    core = UplinkCore()
    assert core.handle(SessionOpened(), 0.0) == [Report()]
    held = VersionKey(Version(3), Epoch(0))
    assert core.handle(answer(version=3), 0.1) == [ReportVersionHeld(held), RequestWork(8)]
    assert core.size == CellSize(2, 4)
    assert core.handle(Tick(), REPORT_S + 0.1) == [Report()]
    assert core.handle(answer(version=3, wanted=6), 1.2) == [RequestWork(6)]


def test_nothing_is_asked_for_without_a_version_or_a_cell_that_answers() -> None:
    core = UplinkCore()
    core.handle(SessionOpened(), 0.0)
    assert core.handle(answer(version=None), 0.1) == []
    core = connected()
    assert core.handle(Tick(), ANSWER_MAX_S + 1.0) == [RequestWork(0), Report()]


def test_leases_are_passed_on_at_once_and_count_until_the_cell_has_them() -> None:
    core = connected()
    given = lease(5, 0, 1)
    assert core.handle(LeasesGranted((given,)), 0.5) == [Report((given,))]
    assert core.held_leases == [5]
    assert core.handle(answer(5, lent=2), 0.6) == []
    assert core.handle(LeasesGranted((given,)), 0.7) == [RequestWork(6)], "it is known"


def test_a_lease_that_a_restarted_cell_has_lost_is_reported_again() -> None:
    core = connected()
    given = lease(5, 0)
    core.handle(LeasesGranted((given,)), 0.5)
    core.handle(answer(5, lent=1), 0.6)
    core.handle(Tick(), 2.0)
    assert Report((given,)) in core.handle(answer(), 2.1)


def test_delivered_slots_end_their_lease_and_busy_ones_do_not() -> None:
    core = connected()
    core.handle(LeasesGranted((lease(5, 0, 1),)), 0.5)
    core.handle(answer(5, lent=2), 0.6)
    core.handle(Delivered((Verdict(LeaseId(5), 0, True, ""), Verdict(LeaseId(5), 1, False, "busy"))), 0.7)
    assert core.held_leases == [5]
    core.handle(Delivered((Verdict(LeaseId(5), 1, False, "fenced"),)), 0.8)
    core.handle(Tick(), 2.0)
    assert Report() not in core.handle(answer(), 2.1), "the cell is not told of a lease that is over"
    assert core.held_leases == []


def test_revoked_and_expired_leases_end_at_the_cell() -> None:
    core = connected()
    core.handle(LeasesGranted((lease(5, 0), lease(6, 0))), 0.5)
    core.handle(answer(5, 6, lent=2), 0.6)
    assert core.handle(LeasesRevoked((LeaseId(5),), "stale"), 0.7) == [Report(ended=((LeaseId(5), "stale"),))]
    core.handle(answer(6, lent=1), 0.8)
    assert core.held_leases == [6]
    late = core.handle(Tick(), 61.0)
    assert Report(ended=((LeaseId(6), "lease_expired"),)) in late
    assert core.held_leases == []


def test_leases_that_a_cell_cannot_serve_are_returned() -> None:
    core = connected()
    segment = Segment("assistant", Epoch(0), Version(0), PeerId("p"), pack_ids((4,)), b"\1")
    begun = replace(lease(5), slots=(Slot(0, 0, (segment,)),))
    evaluation = replace(lease(6, 0), kind="evaluation")
    returned = core.handle(LeasesGranted((begun, evaluation)), 0.5)
    assert returned[0] == ReturnLeases((LeaseId(5), LeaseId(6)), "a cell begins whole completions only")
    assert core.held_leases == []


def test_a_restarted_uplink_names_the_leases_that_the_cell_has() -> None:
    core = connected(7, 8, lent=3)
    assert core.held_leases == [7, 8]
    assert core.handle(LeasesRevoked((LeaseId(7),), "lease_expired"), 1.0)[-1] == Report(
        ended=((LeaseId(7), "lease_expired"),)
    )
    assert core.held_leases == [8]


def test_a_new_session_hears_the_version_and_the_free_slots_again() -> None:
    core = connected()
    core.handle(SessionLost("away"), 1.0)
    opened = core.handle(SessionOpened(), 1.1)
    assert opened[:2] == [ReportVersionHeld(VersionKey(Version(0), Epoch(0))), RequestWork(8)]


def test_convictions_reach_the_cell_once() -> None:
    core = connected()
    assert core.handle(MemberJudged(PeerId("m"), "watched", "a token"), 0.1) == []
    told = core.handle(MemberJudged(PeerId("m"), "quarantined", "tokens"), 0.2)
    assert told == [Report(convicted=((PeerId("m"), "tokens"),))]
    assert core.handle(answer(), 0.3) == []
    assert core.handle(Tick(), 2.0) == [Report()]
