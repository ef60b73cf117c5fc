"""Test that the component reports the outside address of the port for holes, and passes orders on."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from random import Random
from typing import Any

import pytest

from peer.config import LinkConfig
from peer.links.dial_policy import DialPolicy
from peer.links.traffic import LinkTraffic
from peer.punching import component as parts
from peer.punching.component import PunchComponent
from peer.punching.port import PunchPort
from peer.punching.transport import PunchTransport
from peer.reachability.advertised import AdvertisedReachability
from rollcast.runtime.errors import Unreachable
from rollcast.wire.identity.identity import Identity
from rollcast.wire.proto import rollcast_pb2 as pb
from tests.peer.links.link_run import LinkRun
from tests.peer.links.transport_conformance import anyone


class Watched:
    """A stand-in for the coordinator that sends addresses, and ends when the test ends it."""

    def __init__(self) -> None:
        self.begun = 0
        self.families: list[int] = []
        self.said: asyncio.Queue[str] = asyncio.Queue()

    async def __call__(self, _options: Any, port: PunchPort, seen: Any) -> None:
        self.begun += 1
        self.families.append(port.family)
        while address := await self.said.get():
            if not seen(address):
                return
        raise Unreachable("gone")


async def until(what: Any) -> None:
    async with asyncio.timeout(5.0):
        while not what():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.005)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    watched = Watched()
    monkeypatch.setattr(parts, "watch", watched)
    monkeypatch.setattr(parts, "_RETRY_FIRST_S", 0.01)
    monkeypatch.setattr(parts, "LOOKS_AGAIN_S", 0.01)
    return watched


class Ends:
    """A component with its transport, and the messages that it sent."""

    def __init__(self, folder: Path, *, is_here: bool = False, coordinator: str = "192.0.2.9") -> None:
        run = LinkRun(folder)
        config = LinkConfig()
        _, credentials = run.member("peer")
        self.transport = PunchTransport(
            config,
            credentials,
            run.run_id,
            anyone,
            traffic=LinkTraffic(config),
            open_port=lambda version: PunchPort("127.0.0.1" if version == 4 else "::1"),
        )
        self.sent: list[pb.PeerMessage] = []
        self.reached = AdvertisedReachability(self.sent.append)
        options = None if is_here else (lambda path: {"url": f"https://{coordinator}:7401{path}"})
        policy = DialPolicy(lambda: "127.0.0.1")
        self.part = PunchComponent(self.transport, self.reached, self.sent.append, options, Random(0), policy)

    @property
    def told(self) -> str:
        return self.reached.now.punch_address

    @property
    def told_ipv6(self) -> str:
        return self.reached.now.punch_address_ipv6


async def test_the_port_is_watched_while_there_is_a_session_and_again_when_that_ends(
    tmp_path: Path, watched: Watched
) -> None:
    ends = Ends(tmp_path)
    running = asyncio.create_task(ends.part.run())
    await asyncio.sleep(0.03)
    assert not watched.begun
    ends.part.opened(pb.Welcome())
    watched.said.put_nowait("192.0.2.1:4000")
    await until(lambda: ends.told == "192.0.2.1:4000")
    watched.said.put_nowait("192.0.2.1:4001")
    await until(lambda: ends.told == "192.0.2.1:4001")
    watched.said.put_nowait("")
    await until(lambda: watched.begun >= 2)
    assert ends.told == "192.0.2.1:4001", "the port is mapped still"
    watched.said.put_nowait("")
    await until(lambda: ends.told == "")
    await until(lambda: watched.begun > 2)
    running.cancel()
    await ends.transport.close()


async def test_the_port_is_watched_again_in_the_next_session(tmp_path: Path, watched: Watched) -> None:
    ends = Ends(tmp_path)
    running = asyncio.create_task(ends.part.run())
    ends.part.opened(pb.Welcome())
    watched.said.put_nowait("192.0.2.1:4000")
    await until(lambda: ends.told == "192.0.2.1:4000")
    ends.part.lost()
    await asyncio.sleep(0.05)
    assert watched.begun == 1
    ends.part.lost()
    ends.part.opened(pb.Welcome())
    watched.said.put_nowait("192.0.2.1:4001")
    await until(lambda: ends.told == "192.0.2.1:4001")
    running.cancel()
    await ends.transport.close()


@pytest.mark.parametrize("kind", ["open", "mapped", "symmetric"])
async def test_a_peer_that_needs_no_hole_watches_no_port(tmp_path: Path, watched: Watched, kind: Any) -> None:
    ends = Ends(tmp_path)
    running = asyncio.create_task(ends.part.run())
    ends.part.opened(pb.Welcome())
    watched.said.put_nowait("192.0.2.1:4000")
    await until(lambda: ends.told)
    ends.reached.set_nat(kind)
    watched.said.put_nowait("192.0.2.1:4000")
    await until(lambda: not ends.told)
    begun = watched.begun
    await asyncio.sleep(0.05)
    assert watched.begun == begun
    ends.reached.set_nat("port-restricted")
    await until(lambda: watched.begun > begun)
    running.cancel()
    await ends.transport.close()


async def test_behind_a_symmetric_router_the_port_over_ipv6_is_watched_alone(tmp_path: Path, watched: Watched) -> None:
    ends = Ends(tmp_path, coordinator="run.example.org")
    ends.reached.set_nat("symmetric")
    running = asyncio.create_task(ends.part.run())
    ends.part.opened(pb.Welcome())
    watched.said.put_nowait("[2001:db8::1]:4000")
    await until(lambda: ends.told_ipv6 == "[2001:db8::1]:4000")
    assert watched.families == [socket.AF_INET6]
    assert ends.told == ""
    running.cancel()
    await ends.transport.close()


@pytest.mark.parametrize(
    ("coordinator", "families"),
    [
        ("192.0.2.9", {socket.AF_INET}),
        ("[2001:db8::9]", {socket.AF_INET6}),
        ("run.example.org", {socket.AF_INET, socket.AF_INET6}),
    ],
)
async def test_a_coordinator_is_asked_over_the_versions_of_ip_that_its_address_may_have(
    tmp_path: Path, watched: Watched, coordinator: str, families: set[int]
) -> None:
    ends = Ends(tmp_path, coordinator=coordinator)
    running = asyncio.create_task(ends.part.run())
    ends.part.opened(pb.Welcome())
    await until(lambda: set(watched.families) == families)
    await asyncio.sleep(0.03)
    assert len(watched.families) == len(families)
    running.cancel()
    await ends.transport.close()


async def test_a_coordinator_on_this_machine_is_not_watched(tmp_path: Path, watched: Watched) -> None:
    ends = Ends(tmp_path, is_here=True)
    ends.part.opened(pb.Welcome())
    await ends.part.run()
    assert not watched.begun
    await ends.transport.close()


async def test_orders_and_the_session_reach_the_transport(tmp_path: Path) -> None:
    ends = Ends(tmp_path)
    other = Identity.generate().peer_id
    ends.part.opened(pb.Welcome())
    dialling = asyncio.create_task(ends.transport.dial(other))
    await until(lambda: ends.sent)
    assert ends.sent[-1].punch_request.peer_id == other
    ends.part.received(pb.CoordinatorMessage(punch=pb.Punch(peer_id=other, refused="it is not here")))
    with pytest.raises(Unreachable) as caught:
        await dialling
    assert "it is not here" in caught.value.what
    ends.part.lost()
    with pytest.raises(Unreachable) as caught:
        await ends.transport.dial(Identity.generate().peer_id)
    assert "unreachable" in caught.value.what
    await ends.transport.close()


async def test_no_hole_is_punched_to_an_address_that_leads_nowhere_of_a_peers(tmp_path: Path) -> None:
    ends = Ends(tmp_path)
    told: list[pb.Punch] = []
    ends.transport.punch_received = told.append  # type: ignore[method-assign]
    order = pb.Punch(punch_id=1, peer_id="a", role="peer", address="255.255.255.255:22", deadline_s=1.0)
    ends.part.received(pb.CoordinatorMessage(punch=order))
    assert [(one.peer_id, one.address, bool(one.refused)) for one in told] == [("a", "", True)]
    order.address_ipv6 = "[2001:4860::1]:7"
    ends.part.received(pb.CoordinatorMessage(punch=order))
    assert (told[1].address, told[1].address_ipv6, told[1].refused) == ("", "[2001:4860::1]:7", "")
    order.address_ipv6 = "[ff02::1]:7"
    ends.part.received(pb.CoordinatorMessage(punch=order))
    assert (told[2].address, told[2].address_ipv6, bool(told[2].refused)) == ("", "", True)
    await ends.transport.close()
