from __future__ import annotations

from coordinator.core.broadcast.dissemination import Dissemination
from rollcast.wire.ids import PeerId, PlanId, Version

A, B, C = PeerId("a"), PeerId("b"), PeerId("c")


def test_the_last_active_peer_ends_the_broadcast() -> None:
    watch = Dissemination()
    watch.announced(Version(1), [A, B], now=10.0)
    watch.held(A, Version(1), now=11.0)
    watch.held(C, Version(1), now=30.0)  # joined later: does not count
    assert watch.seconds.last is None
    watch.held(B, Version(1), now=12.5)
    assert watch.seconds.last == 2.5
    assert watch.running == 0


def test_peers_that_leave_do_not_count() -> None:
    watch = Dissemination()
    watch.announced(Version(1), [A, B], now=10.0)
    watch.held(A, Version(1), now=11.0)
    watch.left(B)
    assert watch.seconds.last == 1.0


def test_a_broadcast_that_all_receivers_left_is_not_measured() -> None:
    watch = Dissemination()
    watch.announced(Version(1), [A], now=10.0)
    watch.left(A)
    watch.announced(Version(2), [], now=10.0)
    assert (watch.seconds.last, watch.running) == (None, 0)


def test_a_newer_version_counts_for_the_older_ones() -> None:
    watch = Dissemination()
    watch.announced(Version(1), [A], now=0.0)
    watch.announced(Version(2), [A], now=3.0)
    watch.held(A, Version(2), now=4.0)
    assert (watch.seconds.percentile(0), watch.seconds.percentile(100)) == (1.0, 4.0)


def test_watching_is_bounded() -> None:
    watch = Dissemination()
    for version in range(1000):
        watch.announced(Version(version), [A], now=float(version))
    assert watch.running <= 64


def test_a_peers_times_are_of_the_versions_that_it_received() -> None:
    watch = Dissemination()
    for version, at in ((1, 0.0), (2, 10.0), (3, 20.0)):
        watch.announced(Version(version), [A, B], now=at)
        watch.held(A, Version(version), now=at + 1.0)
    watch.held(B, Version(3), now=24.0)  # 1 and 2 were abandoned for it
    watch.held(B, Version(3), now=30.0)  # said again with every heartbeat
    a, b = watch.times_of(A), watch.times_of(B)
    assert a is not None
    assert b is not None
    assert (a.seconds.last, a.seconds.percentile(95), a.times_last, a.newest_held) == (1.0, 1.0, 0, 3)
    assert (b.seconds.last, b.seconds.percentile(95), b.times_last, b.newest_held) == (4.0, 4.0, 3, 3)
    assert watch.times_of(C) is None
    assert watch.peer_seconds.sum == 7.0
    assert watch.peer_seconds.at_most()[-1] == 4


def test_the_newest_broadcast_can_be_read_while_it_runs_and_afterwards() -> None:
    watch = Dissemination()
    assert watch.newest is None
    watch.announced(Version(1), [A, B], now=0.0, plan_id=PlanId(5))
    watch.held(A, Version(1), now=1.0)
    newest = watch.newest
    assert newest is not None
    assert (newest.version, newest.receivers, newest.missing, newest.plan_id) == (1, 2, {B}, 5)
    watch.held(B, Version(1), now=2.0)
    assert newest is watch.newest
    assert (newest.missing, newest.last_held_at, newest.bytes_per_peer) == (set(), 2.0, None)
    watch.received(Version(1), 100)
    watch.received(Version(1), 300)
    watch.received(Version(0), 9999)
    assert newest.bytes_per_peer == 200.0


def test_what_is_remembered_of_peers_is_bounded() -> None:
    watch = Dissemination()
    for number in range(17_000):
        watch.held(PeerId(f"peer-{number}"), Version(1), now=0.0)
    assert watch.times_of(PeerId("peer-0")) is None
    assert watch.times_of(PeerId("peer-16999")) is not None


def test_the_times_of_every_member_are_remembered() -> None:
    watch = Dissemination()
    watch.joined(17_000)
    for number in range(17_000):
        watch.held(PeerId(f"peer-{number}"), Version(1), now=0.0)
    assert watch.times_of(PeerId("peer-0")) is not None
