from __future__ import annotations

from collections import Counter

from coordinator.core.members.fair_share import IDLE, PREFETCHES, FairShare, Rank
from rollcast.wire.ids import PeerId, Version


def waiting(shares: FairShare, name: str, order: int, *, version: int = 0, at: float = 0.0, rank: Rank = IDLE) -> None:
    shares.wait(PeerId(name), order, Version(version), at, rank=rank)


def test_slots_go_out_in_proportion_to_speed() -> None:
    shares, speeds, given = FairShare(), {"slow": 1.0, "fast": 3.0}, Counter[str]()
    times = dict.fromkeys(speeds, 0.0)
    for _ in range(400):
        for order, name in enumerate(speeds):
            waiting(shares, name, order, at=times[name])
        first = shares.first(Version(0))
        assert first is not None
        given[first] += 1
        times[first] = shares.served(first, 1.0 / speeds[first])
        shares.validate()
    assert given == {"slow": 100, "fast": 300}


def test_a_peer_that_was_away_gets_no_arrears() -> None:
    shares = FairShare()
    waiting(shares, "a", 1, at=50.0)
    assert shares.served(PeerId("a"), 1.0) == 51.0
    waiting(shares, "late", 2, at=0.0)
    assert shares.served(PeerId("late"), 1.0) == 51.0


def test_idle_peers_come_before_those_that_fetch_ahead() -> None:
    shares = FairShare()
    waiting(shares, "busy", 1, at=0.0, rank=PREFETCHES)
    waiting(shares, "idle", 2, at=9.0)
    assert shares.first(Version(0)) == "idle"
    assert shares.idle(Version(0), 9) == ["idle"]
    shares.leave(PeerId("idle"))
    assert shares.first(Version(0)) == "busy"
    assert shares.idle(Version(0), 9) == []


def test_only_versions_that_are_young_enough_are_considered() -> None:
    shares = FairShare()
    waiting(shares, "old", 1, version=3)
    waiting(shares, "new", 2, version=5, at=7.0)
    assert (shares.first(Version(3)), shares.first(Version(4)), shares.first(Version(6))) == ("old", "new", None)
    waiting(shares, "old", 1, version=6)
    assert shares.first(Version(6)) == "old"
    assert len(shares.places) == 2


def test_a_peer_that_is_set_aside_waits_for_another_version_or_a_reset() -> None:
    shares = FairShare()
    for name, order in (("a", 1), ("b", 2)):
        waiting(shares, name, order)
        shares.set_aside(PeerId(name))
        waiting(shares, name, order)
    assert shares.first(Version(0)) is None
    waiting(shares, "a", 1, version=1)
    assert shares.first(Version(0)) == "a"
    assert shares.take_set_aside() == ["b"]
    waiting(shares, "b", 2)
    assert PeerId("b") in shares.places
