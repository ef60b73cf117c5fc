"""Test whole relays while the coordinator is unreachable: it announces no version and repairs no plan."""

from __future__ import annotations

from pathlib import Path

from peer.links.neighbours import Neighbour
from tests.peer.relay.relay_world import Member, World, relay_world, until


def go_offline(*members: Member) -> None:
    for member in members:
        member.relay.set_offline(True)


def holder(member: Member) -> Neighbour:
    """Return a member as the address book names it."""
    return Neighbour(member.peer_id, member.role, member.address, we_dial=True)


def holds(version: int, *members: Member) -> bool:
    stored = [member.store.get(version) for member in members]
    return all(one is not None and one.state_held for one in stored)


async def planned(world: World, *names: str) -> list[Member]:
    members = await world.add("origin", *names)
    await world.plan(*members)
    return members


async def test_versions_arrive_from_the_origin_and_are_used_once_they_are_announced(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        origin, a, b = await planned(world, "a", "b")
        first = world.published(0)
        await world.publish(first)
        await until(lambda: a.completed == b.completed == [0])
        go_offline(origin, a, b)
        second = world.published(1, first)
        await world.push(second)
        third = world.published(2, second)
        await world.push(third)
        await until(lambda: holds(2, a, b))
        assert a.state(2) == b.state(2) == third.state
        assert a.completed == b.completed == [0]
        for member in (origin, a, b):
            member.relay.set_offline(False)
        world.announce(third)
        await until(lambda: a.completed == b.completed == [0, 2])  # its store tells a relay a little later


async def test_a_peer_without_the_announcement_gets_it_from_others(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        _, a = await planned(world, "a")
        (late,) = await world.add("late")  # the coordinator never told it of anybody
        first = world.published(0)
        await world.publish(first)
        await until(lambda: a.completed)
        go_offline(late)
        late.relay.know_holders((holder(a),))
        await until(lambda: holds(0, late))
        assert late.state(0) == first.state
        assert late.relay.bytes_received(0) == len(first.state)


async def test_a_version_spreads_around_dead_relays(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        origin, a, b, c = await world.add("origin", "a", "b", "c")
        await world.plan(origin, a)  # and nobody else: b knows a only, and c only b
        b.relay.know_holders((holder(a),))
        c.relay.know_holders((holder(b),))
        go_offline(origin, a, b, c)
        await until(lambda: b.peer_id in c.links and a.peer_id in b.links)
        await world.push(world.published(0))
        await until(lambda: holds(0, a, b, c))


async def test_a_restarted_origin_without_a_plan_serves_its_versions(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        origin, a = await planned(world, "a")
        await world.push(world.published(0))
        await origin.restart()
        go_offline(origin, a)
        origin.relay.know_holders((holder(a),))  # from its own book: at its new address nobody would find it
        await until(lambda: holds(0, a))
