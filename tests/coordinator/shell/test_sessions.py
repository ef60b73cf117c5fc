"""Test outgoing messages: ordered and bounded queues, one session per peer, announcements to all."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from coordinator.core.events.actions import Assignment, Neighbour, SendPlan, SendProbe, StripeAssignment, TellActivation
from coordinator.shell import sessions
from coordinator.shell.peer_sender import (
    ANNOUNCEMENTS_KEPT,
    AT_ONCE,
    PAUSE_S,
    Announcements,
    FanOut,
    activation_message,
    plan_message,
    probe_message,
)
from coordinator.shell.sessions import PeerChannel, Sessions
from coordinator.stores.sqlite import Ledger
from rollcast.runtime.errors import StoreError
from rollcast.wire.ids import Epoch, PeerId, PlanId, Role, StripeId, Version
from rollcast.wire.proto import rollcast_pb2 as pb

ALICE, BOB = PeerId("alice"), PeerId("bob")


def opened(registry: Sessions, peer_id: PeerId, role: Role, address: str) -> PeerChannel:
    channel = PeerChannel(peer_id, role, address)
    registry.add(channel)
    return channel


def revoke(number: int) -> pb.CoordinatorMessage:
    return pb.CoordinatorMessage(lease_revoke=pb.LeaseRevoke(lease_ids=[number]))


async def test_messages_come_in_order_and_the_stop_comes_last() -> None:
    registry = Sessions()
    channel = opened(registry, ALICE, "peer", "")
    registry.send(ALICE, revoke(1))
    registry.send(BOB, revoke(9))  # no session: discarded
    registry.send(ALICE, revoke(2))
    registry.stop(ALICE, "enough")
    registry.send(ALICE, revoke(3))
    got = [await channel.next() for _ in range(4)]
    assert got == [revoke(1), revoke(2), pb.CoordinatorMessage(stop=pb.Stop(reason="enough")), None]
    assert channel.ended_because == "enough"


async def test_a_session_that_ends_without_a_stop_may_be_opened_again() -> None:
    registry = Sessions()
    channel = opened(registry, ALICE, "peer", "")
    registry.send(ALICE, revoke(1))
    registry.end(ALICE, "no heartbeat")
    registry.end(BOB, "nobody there")
    assert [await channel.next() for _ in range(2)] == [revoke(1), None]
    assert registry.close(channel)
    assert opened(registry, ALICE, "peer", "").ended_because == ""


async def test_a_peer_that_does_not_read_is_dropped_and_costs_no_more_memory() -> None:
    registry = Sessions()
    channel = opened(registry, ALICE, "peer", "")
    for number in range(sessions.OUTGOING_MESSAGES_MAX + 5):
        registry.send(ALICE, revoke(number))
    assert await channel.next() is None
    assert "does not read" in channel.ended_because


async def test_a_second_session_replaces_the_first() -> None:
    registry = Sessions()
    first = opened(registry, ALICE, "peer", "")
    waiting = asyncio.create_task(first.next())
    second = opened(registry, ALICE, "peer", "")
    assert await asyncio.wait_for(waiting, 5) is None
    registry.send(ALICE, revoke(1))
    assert await second.next() == revoke(1)
    assert not registry.close(first)
    assert registry.close(second)


async def test_all_closed_waits_for_the_last() -> None:
    registry = Sessions()
    await registry.all_closed()
    channels = [opened(registry, ALICE, "peer", ""), opened(registry, BOB, "origin", "host:1")]
    assert [channel.address for channel in registry.of_role("origin")] == ["host:1"]
    waiting = asyncio.create_task(registry.all_closed())
    for channel in channels:
        await asyncio.sleep(0)
        assert not waiting.done()
        registry.close(channel)
    await asyncio.wait_for(waiting, 5)


async def test_refused_peer_receives_the_reason_before_its_session_ends() -> None:
    sessions = Sessions()
    channel = opened(sessions, PeerId("a"), "peer", "a:1")
    sessions.refuse(PeerId("a"), "RC308", "this peer may not take part", "ask the operator")
    sessions.refuse(PeerId("nobody"), "RC308", "", "")
    message = await channel.next()
    assert message is not None
    assert (message.refused.code, message.refused.fix) == ("RC308", "ask the operator")
    assert await channel.next() is None


def test_assignment_is_sent_completely() -> None:
    part = Assignment(
        neighbours=(
            Neighbour(PeerId("a"), "peer", "a:1", True, lan=True),
            Neighbour(PeerId("o"), "origin", "", False),
        ),
        stripes=(StripeAssignment(StripeId(3), (0,), 5e6, heirs=((0, 1),), adopted=(0,), guardian=1, relays=1),),
        list_children=(0,),
        parents=(1,),
        fallbacks=(Neighbour(PeerId("mirror-0"), "mirror", "https://m/x", True),),
        direct_copies=True,
    )
    assert plan_message(SendPlan(PeerId("b"), PlanId(9), part)).relay_plan == pb.RelayPlan(
        plan_id=9,
        neighbours=[
            pb.PlanNeighbour(peer_id="a", role="peer", address="a:1", we_dial=True, lan=True),
            pb.PlanNeighbour(peer_id="o", role="origin"),
        ],
        stripes=[
            pb.PlanStripe(
                stripe=3,
                children=[0],
                bytes_per_second=5e6,
                heirs=[pb.PlanHeir(child=0, heir=1)],
                adopted=[0],
                guardian=1,
                relays=1,
            )
        ],
        list_children=[0],
        parents=[1],
        fallbacks=[pb.PlanNeighbour(peer_id="mirror-0", role="mirror", address="https://m/x", we_dial=True)],
        direct_copies=True,
    )


def test_a_probe_names_its_bounds() -> None:
    message = probe_message(SendProbe(PeerId("a"), 4, PeerId("b"), 1000, 2.0))
    assert message.probe == pb.Probe(probe_id=4, peer_id="b", bytes_max=1000, seconds_max=2.0)


def test_peer_receives_its_activation_and_the_reason() -> None:
    message = activation_message(TellActivation(PeerId("a"), False, "off: too dear"))
    assert message.activation == pb.Activation(active=False, reason="off: too dear")


MESSAGE = pb.CoordinatorMessage()


async def test_few_leave_at_once_and_many_in_their_order() -> None:
    sent, made = list[PeerId](), list[PeerId]()

    def message_to(peer_id: PeerId) -> pb.CoordinatorMessage:
        made.append(peer_id)
        return MESSAGE

    fan_out = FanOut(lambda peer_id, _message: sent.append(peer_id))
    peers = [PeerId(f"peer-{number}") for number in range(2 * AT_ONCE + 1)]
    for peer_id in peers:
        fan_out.send([peer_id], partial(message_to, peer_id))
    assert made == sent == peers[:AT_ONCE], "a message is made when it is sent"
    async with asyncio.timeout(5.0):
        while len(sent) < len(peers):
            before = len(sent)
            await asyncio.sleep(PAUSE_S)
            assert len(sent) - before <= 2 * AT_ONCE
    assert sent == peers
    fan_out.close()


async def test_close_discards_waiting_messages() -> None:
    sent: list[PeerId] = []
    fan_out = FanOut(lambda peer_id, _message: sent.append(peer_id))
    for _ in range(AT_ONCE + 1):
        fan_out.send([PeerId("peer")], lambda: MESSAGE)
    fan_out.close()
    await asyncio.sleep(2 * PAUSE_S)
    assert len(sent) == AT_ONCE


def announcement(number: int) -> pb.VersionAnnouncement:
    return pb.VersionAnnouncement(record=pb.Signed(payload=bytes([number])))


async def test_newest_announcements_are_in_memory_and_older_in_the_ledger(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "store.sqlite")
    announcements = Announcements(ledger)
    await ledger.record_version(Epoch(0), Version(0), announcement(0).SerializeToString())
    for number in range(ANNOUNCEMENTS_KEPT + 1):
        announcements.remember(Epoch(0), Version(number), announcement(number))
    assert announcements.in_memory(Epoch(0), Version(0)) is None
    assert announcements.in_memory(Epoch(0), Version(ANNOUNCEMENTS_KEPT)) == announcement(ANNOUNCEMENTS_KEPT)
    assert await announcements.stored(Version(0)) == announcement(0)
    assert announcements.in_memory(Epoch(0), Version(0)) == announcement(0)
    with pytest.raises(StoreError, match="version 7 is not in the ledger"):
        await announcements.stored(Version(7))
    await ledger.close()
