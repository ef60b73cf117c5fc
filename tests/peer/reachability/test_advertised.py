"""Test the reports of how a peer can be reached: one per change, and all of them again in every session."""

from __future__ import annotations

import asyncio

from peer.reachability.advertised import AdvertisedReachability
from rollcast.wire.proto import rollcast_pb2 as pb


async def test_changes_at_one_moment_are_one_message_and_the_same_again_is_none() -> None:
    said: list[pb.PeerMessage] = []
    reached = AdvertisedReachability(said.append)
    reached.opened(pb.Welcome())
    reached.set_nat("port-restricted")
    reached.set_punch_address(4, "192.0.2.1:4000")
    reached.set_circuits(("one", "two", "three"))
    await asyncio.sleep(0)
    told = pb.Reachability(nat="port-restricted", punch_address="192.0.2.1:4000", circuits=["one", "two"])
    assert [one.reachability for one in said] == [told]
    reached.set_nat("port-restricted")
    await asyncio.sleep(0)
    assert len(said) == 1
    reached.set_circuits(())
    reached.set_relay_address("/ip4/192.0.2.1/tcp/4001")
    reached.set_advertise("192.0.2.1:5")
    await asyncio.sleep(0)
    told.ClearField("circuits")
    told.relay_address, told.advertise = "/ip4/192.0.2.1/tcp/4001", "192.0.2.1:5"
    assert said[-1].reachability == told == reached.now


async def test_without_a_session_nothing_is_sent_and_everything_in_the_next() -> None:
    said: list[pb.PeerMessage] = []
    reached = AdvertisedReachability(said.append)
    reached.set_nat("symmetric")
    await asyncio.sleep(0)
    assert not said
    for _ in range(2):
        reached.opened(pb.Welcome())
        await asyncio.sleep(0)
        reached.lost()
    assert [one.reachability.nat for one in said] == ["symmetric", "symmetric"]


async def test_the_local_address_is_reported_like_the_rest() -> None:
    said: list[pb.PeerMessage] = []
    reached = AdvertisedReachability(said.append)
    reached.opened(pb.Welcome())
    reached.set_local_address("192.168.1.2:7420")
    await asyncio.sleep(0)
    reached.set_local_address("")
    await asyncio.sleep(0)
    assert [one.reachability.local_address for one in said] == ["192.168.1.2:7420", ""]
