"""What peers earned outlives a coordinator."""

from __future__ import annotations

from dataclasses import replace

from coordinator.core.events.events import EarnedRestored, KeptPeer
from coordinator.core.members.earned_book import from_json, to_json
from rollcast.wire.ids import PeerId, Version
from tests.coordinator.core_world import World, announced, heartbeat, held, joined, wants

A = PeerId("a")


def test_a_restarted_coordinator_knows_what_each_peer_earned_and_which_version_it_used() -> None:
    world = World()
    world.start()
    for name in ("a", "idle"):
        world.handle(replace(joined(name), invite="ann"))
        world.handle(held(name, 0))
    world.handle(wants("a", 2))
    world.finish("a")
    world.handle(announced(1))
    world.handle(held("a", 1))
    world.handle(heartbeat("a", active=1))
    kept = from_json(to_json(world.core.earned()))
    earned = int(world.core.state.members.reputation(A).earned.slots)
    assert kept == EarnedRestored({A: KeptPeer(earned, Version(1), "ann")}), "and nothing of those without a delivery"

    successor = World()
    successor.handle(kept)
    reputation = successor.core.state.members.reputation(A)
    assert (reputation.earned.slots, reputation.earned.works, reputation.invite) == (earned, True, "ann")
    assert successor.core.earned() == kept
    successor.start("a")
    successor.handle(wants("a", 1))
    assert "a" not in successor.grants, "it holds version 0, and had used version 1"
    successor.handle(announced(1))
    successor.handle(held("a", 1))
    assert successor.grants["a"][0].oldest_own_version == 1


def test_a_run_without_anything_earned_restores_nothing() -> None:
    assert from_json("{}") == World().core.earned() == EarnedRestored()
