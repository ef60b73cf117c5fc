"""Test how many slots peers may hold: what they deliver decides, not what they ask for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coordinator.core.events.actions import Action, Note, RecordAttempt
from coordinator.core.events.events import MalformedRollout, PeerJoined, PeerLeft, Tick
from coordinator.core.members.allowances import Allowances, Earned
from rollcast.wire.ids import PeerId, UploadId
from tests.coordinator.core_world import World, held, joined, only, wants

ASKED = 65_536  # the most that a session may ask for


def allowances(**changes: Any) -> Allowances:
    values = {"slots_per_step": 256, "samples_per_group": 8, "workers": 4, "working": 3, "delivered": 10_000}
    return Allowances(**(values | changes))


def test_what_a_peer_may_hold_starts_at_its_fair_share_and_grows_with_what_it_delivers() -> None:
    earned, four = Earned(), allowances()
    assert (four.first, four.most_of(earned)) == (128, 128)
    for _ in range(100):
        earned.delivered(four.first, 200, 0.0)
    assert four.most_of(earned) == 200, "more than it can use is of no use"
    assert allowances(workers=1000).first == 2 * 8, "a few whole groups"


def test_it_is_halved_once_for_all_leases_that_a_machine_loses_at_once() -> None:
    earned = Earned()
    assert earned.lost(issued_at=5.0, first=128, now=35.0)
    assert not any(earned.lost(issued_at=at, first=128, now=36.0) for at in (6.0, 34.0))
    assert earned.slots == 64.0
    assert [earned.lost(at, 128, at + 30.0) for at in (40.0, 80.0, 120.0, 160.0, 200.0, 240.0, 280.0)] == [True] * 7
    assert (earned.slots, earned.losses) == (1.0, 8)


def test_being_overtaken_halves_it_unless_something_was_delivered_meanwhile() -> None:
    earned = Earned(slots=16.0, has_delivered=True, delivered_at=10.0)
    assert not earned.overtaken(issued_at=9.0, first=128, now=20.0)
    assert (earned.slots, earned.losses, earned.works) == (15.0, 0, True), "what one delivery earns"
    assert earned.overtaken(issued_at=11.0, first=128, now=20.0)
    assert not earned.overtaken(issued_at=12.0, first=128, now=21.0), "of the same loss"
    assert (earned.slots, earned.losses, earned.works) == (7.5, 1, False)
    spent = Earned(slots=1.0, has_delivered=True, delivered_at=10.0)
    assert not spent.overtaken(issued_at=9.0, first=128, now=20.0)
    assert spent.slots == 1.0


def test_peers_that_lose_leases_again_and_again_rest_ever_longer_until_they_deliver() -> None:
    rests = [Earned(losses=times).rest_s(30.0) for times in range(12)]
    assert rests == [0.0, 0.0, 0.0, 30.0, 60.0, 120.0, 240.0, 480.0, 960.0, 960.0, 960.0, 960.0]
    earned = Earned(slots=1.0, losses=9)
    earned.delivered(128, 128, 0.0)
    assert (earned.slots, earned.losses, earned.works) == (2.0, 0, True)


def test_the_only_peer_that_works_keeps_its_fair_share_whatever_it_lost() -> None:
    earned = Earned(slots=1.0, has_delivered=True, losses=3)
    assert allowances(workers=2, working=0).most_of(earned) == 256
    assert allowances(workers=2, working=1).most_of(earned) == 1


def test_newcomers_of_an_invite_share_one_allowance_once_the_run_has_begun() -> None:
    newcomers = Earned()
    assert allowances(delivered=511).most_on_trial(newcomers) == float("inf"), "at first every peer is a newcomer"
    assert allowances(working=0).most_on_trial(newcomers) == float("inf")
    assert [allowances(working=count).most_on_trial(newcomers) for count in (1, 8, 1000)] == [512, 64, 26]
    many = allowances(working=1000)
    for time in range(9):
        newcomers.lost(issued_at=time, first=26, now=time)
    assert many.most_on_trial(newcomers) == 4, "an eighth of it, for those that are honest"


def test_shares_of_a_batch_hold_only_among_enough_others() -> None:
    assert (allowances(working=9).are_shared, allowances(working=10).are_shared) == (False, True)
    ten = allowances(working=10)
    assert (ten.is_above_share(25, 0), ten.is_above_share(26, 0), ten.is_above_share(26, 512)) == (False, True, False)


# ---------------------------------------------------------------- in a core


def issued_to(actions: list[Action], name: str) -> int:
    return sum(one.peer_id == name for one in only(actions, RecordAttempt))


def world_with_a_hoarder(**changes: Any) -> World:
    """Return a world of three peers that deliver and one that asks for everything first. It has 16 slots a step."""
    values = {"groups_per_step": 4, "samples_per_group": 4, "staleness_limit": 100, "heartbeat_timeout_s": 1e6}
    world = World(**({"steps": 1000} | values | changes))
    world.start("a", "b", "c", "hoarder")
    return world


def expire(world: World) -> list[Action]:
    """Let the deadline of every lease pass."""
    world.now += world.core.settings.lease_deadline_s + 0.1
    return world.handle(Tick())


def deliver(world: World, *names: str) -> None:
    for name in names:
        world.handle(wants(name, 4))
        world.finish(name)


def test_a_hoarder_gets_its_fair_share_once_and_then_ever_less() -> None:
    world = world_with_a_hoarder()
    world.handle(joined("hoarder", concurrent=ASKED))
    world.handle(held("hoarder", 0))
    held_slots = []
    for _ in range(6):
        held_slots.append(issued_to(world.handle(wants("hoarder", ASKED)), "hoarder"))
        deliver(world, "a", "b", "c")
        actions = expire(world)
        held_slots[-1] += issued_to(actions, "hoarder")
    assert held_slots[0] <= 8 + 4, "the second lease comes as soon as the first one expired"
    assert sum(held_slots) <= 24


def test_a_hoarder_rests_after_its_leases_came_to_nothing_three_times() -> None:
    world = world_with_a_hoarder()
    notes: list[Note] = []
    for _ in range(3):
        world.handle(wants("hoarder", ASKED))
        deliver(world, "a", "b", "c")
        notes += [one for one in only(expire(world), Note) if one.kind == "peer_rests"]
    text = "no new work for 30 s: its leases came to nothing 3 times in a row"
    assert notes == [Note("peer_rests", "hoarder", text)]
    member = world.core.state.members.get(PeerId("hoarder"))
    assert member is not None
    assert text in member.reason


def test_a_rest_ends_when_no_other_peer_delivers() -> None:
    world = world_with_a_hoarder()
    for _ in range(4):
        world.handle(wants("hoarder", ASKED))
        deliver(world, "a", "b", "c")
        expire(world)
    for name in ("a", "b", "c"):
        world.handle(wants(name, 4))
    world.take("hoarder")
    expire(world)
    expire(world)
    assert issued_to(world.handle(wants("hoarder", 8)), "hoarder") or world.grants.get("hoarder")


def test_malformed_rollouts_cost_as_much_as_expired_leases() -> None:
    world = world_with_a_hoarder()
    deliver(world, "a", "b", "c")
    world.handle(wants("hoarder", ASKED))
    for number in range(20):
        world.now += 0.1
        for grant, slot in world.take("hoarder"):
            upload = UploadId(1000 + number)
            world.handle(
                MalformedRollout(
                    upload, PeerId("hoarder"), grant.lease_id, grant.fencing_token, slot.sample_index, "no rollout"
                )
            )
        world.handle(wants("hoarder", ASKED))
    assert world.core.state.book.held_count(PeerId("hoarder")) <= 1


def of_invite(name: str, invite: str) -> PeerJoined:
    return replace(joined(name, concurrent=8), invite=invite)


def test_many_new_identities_of_one_invite_hold_no_more_than_a_share() -> None:
    world = world_with_a_hoarder(groups_per_step=10, validate_every_event=False)
    for _ in range(10):
        deliver(world, "a", "b", "c")
        for name in ("a", "b", "c"):
            world.take(name)
    state = world.core.state
    assert state.accounts.accepted >= 2 * 40
    for number in range(40):
        world.handle(of_invite(f"sybil-{number}", "bought"))
        world.handle(held(f"sybil-{number}", 0))
        world.handle(wants(f"sybil-{number}", ASKED))
    assert state.book.shares.by_invite["bought"] <= 2 * 40 / 3 + 1
    world.handle(of_invite("honest", "own"))
    world.handle(held("honest", 0))
    world.handle(wants("honest", 8))
    assert world.take("honest"), "each invite's newcomers have an allowance of their own"


def test_no_peer_makes_a_whole_group_while_another_one_is_idle() -> None:
    names = [f"p{number}" for number in range(16)]
    world = World(groups_per_step=4, samples_per_group=4, staleness_limit=1, steps=1000)
    for name in names:
        world.core.state.members.reputation(PeerId(name)).earned.delivered(8, 8, 0.0)
    world.start(*names)
    state = world.core.state
    assert state.allowances.are_shared
    for name in names:  # more peers than there is work for
        world.handle(wants(name, 4))
    (group, holder), *_ = [(group, group.live()[0].peer_id) for group in state.book if len(group.live()) == 4]
    assert {one.peer_id for one in group.live()} == {holder}, "no other peer was idle when it asked"
    world.handle(PeerLeft(holder, "goodbye", finished=True))
    makers = [one.peer_id for one in group.live()]
    assert len(makers) == 4
    assert len(set(makers)) == 2
