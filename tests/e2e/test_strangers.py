"""Test what a hostile member can make honest peers do: a real coordinator and a real peer, in this process."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from bench.adversary.lured import LIES, identity_below, listening
from peer.config import PeerConfig
from peer.service import run
from rollcast.wire.identity.identity import Identity
from rollcast.wire.proto import rollcast_pb2 as pb
from tests.coordinator.running import Member, changed, running
from tests.peer.engines.fake_engine import FakeEngine

WAIT_S = 60.0


async def test_members_addresses_direct_no_peer_to_third_parties(tmp_path: Path) -> None:
    """Members advertised services of others, and every peer of the run sent these requests."""
    no_dial_backs = changed(relay={"dial_back": False})  # nothing else than a plan may lead to the services
    async with running(tmp_path / "run", no_dial_backs) as fleet, listening() as service, listening() as honest:
        folder = tmp_path / "peer"
        fields = {"name": "victim", "invite": fleet.invite("peer").encode(), "state_folder": folder}
        config = PeerConfig.model_validate({**fields, "role": "peer", "limits": {"polite": False}})
        victim = Identity.load_or_create(folder / "identity.key")
        joined = [await fleet.join("peer", identity_below(victim)) for _ in (*LIES, "an honest one")]
        async with AsyncExitStack() as open_sessions:
            origin = await open_sessions.enter_async_context(Member(await fleet.join("origin"), "origin"))
            await origin.hello(advertise="")
            members = [await open_sessions.enter_async_context(Member(one)) for one in joined]
            advertised = [lie.format(port=service.port) for lie in LIES] + [f"127.0.0.1:{honest.port}"]
            for member, address in zip(members, advertised, strict=True):
                await member.hello(advertise=address)
            stop = asyncio.Event()
            peer = asyncio.create_task(run(config, stop, engine_factory=lambda _: FakeEngine()))
            async with asyncio.timeout(WAIT_S):
                await asyncio.wait([peer, asyncio.create_task(honest.reached.wait())], return_when="FIRST_COMPLETED")
                plan: pb.RelayPlan = await members[-1].next("relay_plan")
                while len(plan.neighbours) < len(joined) + 1:
                    plan = await members[-1].next("relay_plan")
            stop.set()
            await peer
        addresses = {neighbour.peer_id: neighbour.address for neighbour in plan.neighbours}
        assert [addresses[one.peer_id] for one in joined[:-1]] == [""] * len(LIES)
        assert honest.connections > 0
        assert service.connections == 0
