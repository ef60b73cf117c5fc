from __future__ import annotations

from coordinator.dissemination import Dissemination
from rollcast.wire.ids import PeerId, Version

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


def test_a_broadcast_that_everybody_left_is_not_measured() -> None:
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
