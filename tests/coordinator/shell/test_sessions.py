"""Outgoing queues: in order, bounded, and one session a peer."""

from __future__ import annotations

import asyncio

from coordinator.shell import sessions
from coordinator.shell.sessions import Sessions
from rollcast.wire.ids import PeerId
from rollcast.wire.proto import rollcast_pb2 as pb

ALICE, BOB = PeerId("alice"), PeerId("bob")


def revoke(number: int) -> pb.CoordinatorMessage:
    return pb.CoordinatorMessage(lease_revoke=pb.LeaseRevoke(lease_ids=[number]))


async def test_messages_come_in_order_and_the_stop_comes_last() -> None:
    registry = Sessions()
    channel = registry.open(ALICE, "peer", "")
    registry.send(ALICE, revoke(1))
    registry.send(BOB, revoke(9))  # nobody there: dropped
    registry.send(ALICE, revoke(2))
    registry.stop(ALICE, "enough")
    registry.send(ALICE, revoke(3))
    got = [await channel.next() for _ in range(4)]
    assert got == [revoke(1), revoke(2), pb.CoordinatorMessage(stop=pb.Stop(reason="enough")), None]
    assert channel.ended_because == "enough"


async def test_a_session_that_ends_without_a_stop_may_be_opened_again() -> None:
    registry = Sessions()
    channel = registry.open(ALICE, "peer", "")
    registry.send(ALICE, revoke(1))
    registry.end(ALICE, "no heartbeat")
    registry.end(BOB, "nobody there")
    assert [await channel.next() for _ in range(2)] == [revoke(1), None]
    assert registry.close(channel)
    assert registry.open(ALICE, "peer", "").ended_because == ""


async def test_a_peer_that_does_not_read_is_dropped_and_costs_no_more_memory() -> None:
    registry = Sessions()
    channel = registry.open(ALICE, "peer", "")
    for number in range(sessions.OUTGOING_MESSAGES_MAX + 5):
        registry.send(ALICE, revoke(number))
    assert await channel.next() is None
    assert "does not read" in channel.ended_because


async def test_a_second_session_replaces_the_first() -> None:
    registry = Sessions()
    first = registry.open(ALICE, "peer", "")
    waiting = asyncio.create_task(first.next())
    second = registry.open(ALICE, "peer", "")
    assert await asyncio.wait_for(waiting, 5) is None
    registry.send(ALICE, revoke(1))
    assert await second.next() == revoke(1)
    assert not registry.close(first)
    assert registry.close(second)


async def test_all_closed_waits_for_the_last() -> None:
    registry = Sessions()
    await registry.all_closed()
    channels = [registry.open(ALICE, "peer", ""), registry.open(BOB, "origin", "host:1")]
    assert [channel.address for channel in registry.of_role("origin")] == ["host:1"]
    waiting = asyncio.create_task(registry.all_closed())
    for channel in channels:
        await asyncio.sleep(0)
        assert not waiting.done()
        registry.close(channel)
    await asyncio.wait_for(waiting, 5)


async def test_a_refused_peer_hears_why_before_its_session_ends() -> None:
    sessions = Sessions()
    channel = sessions.open(PeerId("a"), "peer", "a:1")
    sessions.refuse(PeerId("a"), "RC308", "this peer may not take part", "ask the operator")
    sessions.refuse(PeerId("nobody"), "RC308", "", "")
    message = await channel.next()
    assert message is not None
    assert (message.refused.code, message.refused.fix) == ("RC308", "ask the operator")
    assert await channel.next() is None
