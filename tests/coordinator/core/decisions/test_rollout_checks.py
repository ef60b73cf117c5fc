"""Which versions a peer may generate with under a lease: none older than one that it used before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordinator.core.decisions.rollout_checks import version_chosen
from coordinator.core.events.actions import CloseAttempt, Penalise, StoreRollout
from coordinator.core.events.events import PartialReceived, PeerLeft
from rollcast.wire.ids import Epoch, PeerId, Version
from rollcast.wire.rollouts import LeaseGrant, PartialRollout, Segment
from rollcast.wire.token_ids import pack_ids
from tests.coordinator.core_world import World, announced, heartbeat, held, joined, only, received, rollout, wants


def world(newest: int = 2, **changes: Any) -> World:
    """Return a world with three versions that are young enough, in which peers a and b hold version 0."""
    here = World(staleness_limit=4, pacing="count", **changes)
    here.start("a", "b")
    for version in range(1, newest + 1):
        here.handle(announced(version))
    return here


def lease_for(here: World, peer: str = "a", slots: int = 1) -> LeaseGrant:
    here.handle(wants(peer, slots))
    return here.take(peer)[0][0]


def segment(version: int, *tokens: int, peer: str = "a") -> Segment:
    return Segment(
        "assistant", Epoch(0), Version(version), PeerId(peer), pack_ids(tokens or (5, 1)), b"\1" * (len(tokens) or 2)
    )


def refused_for(here: World, lease: LeaseGrant, *segments: Segment) -> list[str]:
    """Return why the rollout of a lease's first slot is dropped; nothing if it is stored."""
    actions = here.handle(received("a", 1, rollout(lease, lease.slots[0].sample_index, segments=segments)))
    reasons = [one.reason for one in only(actions, CloseAttempt)]
    assert bool(reasons) != bool(only(actions, StoreRollout))
    return reasons


def test_no_older_version_answers_than_one_that_a_heartbeat_named_before_the_lease() -> None:
    here = world()
    here.handle(heartbeat("a", active=2))
    lease = lease_for(here)
    assert lease.oldest_own_version == 2
    actions = here.handle(received("a", 1, rollout(lease, 0, version=1)))
    assert [one.reason for one in only(actions, CloseAttempt)] == ["older_version"]
    told = "generated with version 1 although it had used version 2 already"
    assert only(actions, Penalise) == [Penalise(PeerId("a"), told, False)]
    assert here.core.status(0.0).rollouts.dropped["older_version"] == 1


def test_an_answer_with_a_version_proves_that_the_peer_has_it() -> None:
    """Else a peer that reports an old version for ever could choose among all that came since."""
    here = world()
    first = lease_for(here)
    assert first.oldest_own_version == 0
    assert refused_for(here, first, segment(2)) == []
    here.handle(wants("a", 1))
    assert "a" not in here.grants, "it has not even reported that it holds the version"
    here.handle(held("a", 2))
    assert [lease.oldest_own_version for lease in here.grants["a"]] == [2]


def test_leases_from_before_a_swap_may_be_answered_with_the_version_of_then_or_any_newer() -> None:
    """Rollouts of several versions at once (adapters), a swap within a rollout, and heartbeats that come late."""
    here = world()
    first, second = lease_for(here), lease_for(here)
    here.handle(held("a", 2))
    here.handle(heartbeat("a", active=2))
    assert refused_for(here, first, segment(0)) == []
    assert refused_for(here, second, segment(0, 5), segment(1, 6), segment(2, 1)) == []


def test_a_version_that_is_still_loading_does_not_forbid_the_active_one() -> None:
    here = world()
    here.handle(heartbeat("a", active=1))
    here.handle(held("a", 2))  # complete on its disk; the engine loads it
    assert refused_for(here, lease_for(here), segment(1)) == []


def test_a_continued_beginning_may_be_older_than_what_its_new_peer_used() -> None:
    here = world()
    lease = lease_for(here)
    attempt = here.core.state.book.held_by(PeerId("a"))[0]
    used = replace(attempt, oldest_own_version=Version(2), prefix=(segment(0, 5, peer="b"),))
    assert lease.oldest_own_version == 0
    assert version_chosen((segment(2, 1),), used) == ""
    assert version_chosen((segment(1, 1),), used)


def test_versions_never_fall_within_a_rollout() -> None:
    here = world()
    assert refused_for(here, lease_for(here), segment(1, 5), segment(0, 1)) == ["older_version"]


@pytest.mark.parametrize("version", [1, 2])
def test_what_a_partial_rollout_may_be_made_with_is_the_same(version: int) -> None:
    here = world()
    here.handle(heartbeat("a", active=2))
    lease = lease_for(here)
    part = PartialRollout(lease.lease_id, lease.fencing_token, 0, 0, (segment(version, 5),))
    assert len(only(here.handle(PartialReceived(PeerId("a"), part)), Penalise)) == (version == 1)
    assert bool(here.core.state.partials.tokens) == (version == 2)


def test_reconnecting_makes_no_older_version_good_again() -> None:
    """A restarted peer that lost its disk gets work again as soon as it holds what it had generated with."""
    here = world()
    here.handle(heartbeat("a", active=2))
    here.handle(PeerLeft(PeerId("a"), "restarted", finished=True))
    here.handle(joined("a"))
    here.handle(held("a", 1))
    here.handle(wants("a", 2))
    assert "a" not in here.grants
    here.handle(held("a", 2))
    assert [lease.oldest_own_version for lease in here.grants["a"]] == [2]
