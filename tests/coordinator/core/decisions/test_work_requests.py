from __future__ import annotations

from dataclasses import replace

from coordinator.core.events.actions import Action, CloseAttempt, Penalise, RevokeLeases, SendLeases, StoreRollout
from coordinator.core.events.events import ArrivalsBegan, ArrivalsEnded, LeasesReturned, PartialReceived, PeerLeft, Tick
from rollcast.wire.ids import FencingToken, LeaseId, PeerId
from rollcast.wire.rollouts import LeaseGrant, PartialRollout, Segment
from rollcast.wire.token_ids import pack_ids
from tests.coordinator.core_world import World, heartbeat, held, joined, only, received, rollout, wants

A, B = PeerId("a"), PeerId("b")


def world() -> tuple[World, LeaseGrant]:
    """Return a world in which peer a holds both slots of the first group, and its lease."""
    made = World(reconnect_grace_s=3.0, lease_deadline_s=30.0)
    made.start("a", "b")
    made.handle(wants("a", 2))
    return made, made.take("a")[0][0]


def passes(made: World, seconds: float, *here: str) -> list[Action]:
    made.now += seconds
    for name in ("origin", *here):
        made.handle(heartbeat(name, active=0))
    return made.handle(Tick())


def test_requests_that_arrive_together_are_granted_after_the_last_of_them() -> None:
    made = World()
    made.start("a", "b")
    assert made.handle(ArrivalsBegan()) == []
    for peer in ("a", "b"):
        assert only(made.handle(wants(peer, 2)), SendLeases) == []
    granted = only(made.handle(ArrivalsEnded()), SendLeases)
    assert [(one.peer_id, len(one.leases)) for one in granted] == [(A, 1), (B, 1)]
    assert only(made.handle(ArrivalsEnded()), SendLeases) == []


def test_a_reconnecting_peer_keeps_the_leases_it_reports_and_the_rest_is_free_at_once() -> None:
    made, lease = world()
    made.handle(PeerLeft(A, "connection reset"))
    assert only(made.handle(replace(joined("a"), held_leases=(lease.lease_id,))), CloseAttempt) == []
    made.handle(PeerLeft(A, "connection reset"))
    ended = only(made.handle(replace(joined("a"), held_leases=())), CloseAttempt)
    assert ended == [CloseAttempt(lease.lease_id, slot.sample_index, "peer_left") for slot in lease.slots]
    made.handle(wants("b", 2))
    assert [(grant.group_id, slot) for grant, slot in made.take("b")] == [(1, slot) for slot in lease.slots]


def test_a_lost_peer_keeps_its_leases_and_after_a_grace_another_gets_the_slots_too() -> None:
    made, lease = world()
    assert only(made.handle(PeerLeft(A, "connection reset")), CloseAttempt) == []
    made.handle(wants("b", 2))
    assert [grant.group_id for grant, _ in made.take("b")] == [2, 2], "the first group is not open yet"
    passes(made, 3.0, "b")
    made.handle(wants("b", 2))
    second = made.take("b")
    assert [(grant.group_id, slot) for grant, slot in second] == [(1, slot) for slot in lease.slots]
    # The first rollout wins, whoever sends it.
    made.handle(joined("a"))
    actions = made.handle(received("a", 1, rollout(lease, 0)))
    assert only(actions, StoreRollout) != []
    assert only(actions, CloseAttempt) == [CloseAttempt(second[0][0].lease_id, 0, "late_duplicate")]
    assert only(actions, RevokeLeases) == [], "the other slot of that lease goes on"
    actions = made.handle(received("b", 2, rollout(second[1][0], 1, peer="b")))
    assert only(actions, CloseAttempt) == [CloseAttempt(lease.lease_id, 1, "late_duplicate")]
    assert only(actions, RevokeLeases) == [RevokeLeases(A, (lease.lease_id,), "late_duplicate")]


def test_a_peer_that_is_back_in_time_costs_nothing() -> None:
    made, lease = world()
    made.handle(PeerLeft(A, "connection reset"))
    made.handle(joined("a"))
    made.handle(held("a", 0))
    made.handle(wants("a", 2))  # two of the four that it may hold are at work
    made.handle(wants("b", 4))
    passes(made, 4.0, "a", "b")
    assert all(grant.group_id > 1 for grant, _ in made.take("b"))
    assert only(made.handle(received("a", 1, rollout(lease, 0))), StoreRollout) != []


def test_repeated_reconnects_give_no_more_than_twice_the_capacity() -> None:
    made = World(staleness_limit=9, validate_every_event=True)
    made.start("a")
    for _ in range(5):
        made.handle(wants("a", 4))
        made.handle(PeerLeft(A, "again"))
        made.handle(joined("a"))
        made.handle(held("a", 0))
    assert made.core._state.book.held_count(A) == 8


def test_a_peer_that_only_returns_leases_gets_work_less_and_less_often_until_it_completes_some() -> None:
    made = World(staleness_limit=9, validate_every_event=True)
    made.start("a")

    def returns_leases() -> bool:
        """Let the peer return the leases that it got. Returns whether there were any."""
        leases = made.take("a")
        made.handle(LeasesReturned(A, tuple(lease.lease_id for lease, _ in leases), "no"))
        return bool(leases)

    for _ in range(4):
        made.handle(wants("a", 2))
        assert returns_leases()
    given_at = []
    for second in range(1, 12):
        made.now = float(second)
        made.handle(wants("a", 2))
        made.handle(Tick())
        if returns_leases():
            given_at.append(second)
    assert given_at == [1, 3, 7]
    (shown,) = [one for one in made.core.status(made.now).peers if one.peer_id == A]
    assert "no new work for 8 s: it returned leases 7 times in a row" in shown.reason
    made.now = 15.0
    made.handle(Tick())
    (lease, slot), *_ = made.take("a")
    made.handle(received("a", 1, rollout(lease, slot.sample_index)))  # and it is stored
    made.handle(wants("a", 2))
    assert returns_leases()
    made.handle(wants("a", 2))
    assert made.take("a"), "it may again"
    (shown,) = [one for one in made.core.status(made.now).peers if one.peer_id == A]
    assert shown.reason == ""


def test_goodbye_ends_leases_at_once_and_the_deadline_in_the_end() -> None:
    made, lease = world()
    assert only(made.handle(PeerLeft(A, "done", finished=True)), CloseAttempt) == [
        CloseAttempt(lease.lease_id, index, "peer_left") for index in (0, 1)
    ]
    made, lease = world()
    made.handle(PeerLeft(A, "lost"))
    made.now = 30.0
    assert only(made.handle(Tick()), CloseAttempt) == [
        CloseAttempt(lease.lease_id, index, "lease_expired") for index in (0, 1)
    ]


def test_a_second_peer_continues_the_tokens_that_the_first_sent() -> None:
    made, lease = world()
    drawn = Segment(
        "assistant", lease.epoch, made.core.newest_version or lease.oldest_useful_version, A, pack_ids((5,)), b"\1"
    )
    part = PartialRollout(lease.lease_id, lease.fencing_token, 1, 0, (drawn,))
    lie = replace(part, segments=(replace(drawn, peer_id=B),))
    assert [type(one) for one in made.handle(PartialReceived(A, lie))] == [Penalise]
    assert made.handle(PartialReceived(A, part)) == []
    assert made.handle(PartialReceived(B, part)) == [], "not its attempt"
    assert made.handle(PartialReceived(A, replace(part, fencing_token=FencingToken(99)))) == []
    made.handle(PeerLeft(A, "preempted"))
    passes(made, 3.0, "b")
    made.handle(wants("b", 2))
    (first, _), (second, slot) = made.take("b")
    assert [one.prefix for one in first.slots] == [(), (drawn,)]
    own = Segment("assistant", drawn.epoch, drawn.version, B, pack_ids((6, 1)), b"\1\1")
    item = rollout(second, slot.sample_index, peer="b", segments=(drawn, own))
    assert only(made.handle(received("b", 1, item)), StoreRollout) != []
    assert made.core._state.partials.tokens == 0


def test_an_interrupted_rollout_is_a_last_part() -> None:
    made, lease = world()
    item = rollout(lease, 0, finish_reason="interrupted")
    beginning = replace(item.segments[0], packed_ids=pack_ids((5,)), loss_mask=b"\1")
    closed = only(made.handle(received("a", 1, replace(item, segments=(beginning,)))), CloseAttempt)
    assert closed == [CloseAttempt(lease.lease_id, 0, "returned")]
    made.handle(wants("b", 1))
    ((again, slot),) = made.take("b")
    assert (slot.prefix, slot.seed) == ((beginning,), lease.slots[0].seed)
    assert again.lease_id > LeaseId(1)


def test_leases_do_not_expire_while_uploads_are_refused() -> None:
    made, lease = world()
    made.handle(Tick(uploads_refused=True))
    closed: list[CloseAttempt] = []
    for seconds, refused in ((25.0, True), (25.0, True), (25.0, False), (29.0, False)):
        made.now += seconds
        made.handle(heartbeat("a", active=0))
        closed += only(made.handle(Tick(uploads_refused=refused)), CloseAttempt)
    assert not closed
    made.now += 1.0
    assert only(made.handle(Tick()), CloseAttempt) == [
        CloseAttempt(lease.lease_id, index, "lease_expired") for index in (0, 1)
    ]


def test_leases_of_a_peer_that_takes_minutes_do_not_expire() -> None:
    """With a fixed deadline of 30 s, no rollout of such a peer would ever be accepted."""
    made = World(reconnect_grace_s=3.0, lease_deadline_s=30.0, lease_deadline_most_s=1800.0)
    made.start("a", "b")
    for _ in range(3):
        made.handle(wants("a", 2))
        taken = made.take("a")
        assert taken
        for _ in range(25):
            assert only(passes(made, 4.0, "a", "b"), CloseAttempt) == []
        for grant, slot in taken:
            assert len(only(made.handle(received("a", 0, rollout(grant, slot.sample_index))), StoreRollout)) == 1


def test_the_long_lease_of_one_peer_keeps_no_later_one_from_expiring() -> None:
    made = World(heartbeat_timeout_s=1e9, lease_deadline_s=30.0, lease_deadline_most_s=1800.0, groups_per_step=4)
    made.start("a", "hoarder")
    made.handle(wants("hoarder", 2))  # before any speed is known
    made.handle(wants("a", 2))
    for grant, slot in made.take("a"):
        made.now += 1.0
        made.handle(received("a", 0, rollout(grant, slot.sample_index)))
    made.handle(wants("a", 2))
    grant, _ = made.take("a")[0]
    assert (made.grants["hoarder"][0].deadline_s, grant.deadline_s) == (1800.0, 30.0)
    made.now += 30.0
    closed = only(made.handle(Tick()), CloseAttempt)
    assert {(one.lease_id, one.reason) for one in closed} == {(grant.lease_id, "lease_expired")}
