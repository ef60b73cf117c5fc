from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from peer.config import LinkConfig, MirrorConfig
from peer.links.dial_policy import DialPolicy
from peer.links.traffic import LinkTraffic
from peer.links.transport import Link, LinkHandler
from peer.mirrors.transport import MirrorTransport
from peer.transports.transports import Transports
from rollcast.runtime.errors import Unreachable
from rollcast.wire.identity.tls import TlsCredentials
from rollcast.wire.ids import PeerId
from rollcast.wire.versions.chunk_store import ChunkStore
from tests.peer.mirrors.mirror_server import HTTP_LIMITS, LINK_LIMITS, Collector, known, mirror_server, request, want
from tests.peer.versions import stored_version, version_record

ORIGIN, MIRROR = PeerId("origin-1"), PeerId("mirror-1")


class NoDirectLinks:
    """A direct transport that records the dials asked of it."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    async def start(self, on_link: LinkHandler) -> str:
        self.calls.append(on_link)
        return "host:1"

    async def dial(self, peer_id: PeerId, address: str) -> Link:
        self.calls.append(address)
        raise Unreachable("no")

    def renew(self, credentials: TlsCredentials) -> None:
        self.calls.append(credentials)

    async def close(self) -> None:
        self.calls.append("closed")


def policy() -> DialPolicy:
    """Return the policy of a process whose coordinator is on the same machine, and names have one address."""

    async def resolve(host: str) -> list[str]:
        return ["192.0.2.9"]

    return DialPolicy(lambda: "127.0.0.1", resolve)


def transports(*mirrors_of_its_own: str) -> tuple[Transports, NoDirectLinks]:
    direct = NoDirectLinks()
    mirrors = MirrorTransport(
        MirrorConfig(addresses=mirrors_of_its_own),
        known,
        LinkTraffic(LinkConfig()),
        http_limits=HTTP_LIMITS,
        link_limits=LINK_LIMITS,
    )
    return Transports(direct, mirrors, policy=policy()), direct


async def test_direct_addresses_and_the_transports_lifecycle_go_to_the_direct_transport() -> None:
    both, direct = transports()

    def handler(_link: Link) -> Collector:
        return Collector()

    assert await both.start(handler) == "host:1"
    for address in ("a.example:1", "[::1]:1", "10.0.0.1:1"):
        with pytest.raises(Unreachable, match="no"):
            await both.dial(ORIGIN, address)
    await both.close()
    assert direct.calls == [handler, "192.0.2.9:1", "[::1]:1", "10.0.0.1:1", "closed"]


async def test_addresses_of_libp2p_hosts_need_libp2p() -> None:
    both, direct = transports()
    with pytest.raises(Unreachable, match="cannot reach"):
        await both.dial(ORIGIN, "/ip4/10.0.0.1/tcp/4001")
    p2p = NoDirectLinks()
    three = Transports(direct, both._mirrors, p2p, policy=policy())
    with pytest.raises(Unreachable, match="no"):
        await three.dial(ORIGIN, "/ip4/10.0.0.1/tcp/4001")
    assert (direct.calls, p2p.calls) == ([], ["/ip4/10.0.0.1/tcp/4001"])
    await three.close()
    assert p2p.calls[-1] == "closed"


async def test_of_several_addresses_the_first_that_answers_is_used_and_remembered() -> None:
    both, direct = transports()
    p2p = NoDirectLinks()
    three = Transports(direct, both._mirrors, p2p, policy=policy())
    for _ in range(2):
        with pytest.raises(Unreachable, match="no"):
            await three.dial(ORIGIN, "10.0.0.1:1 /ip4/10.0.0.1/tcp/4001")
    assert direct.calls == ["10.0.0.1:1"] * 2
    assert p2p.calls == ["/ip4/10.0.0.1/tcp/4001"] * 2
    await three.close()


async def test_libp2p_is_advertised_under_the_name_of_direct_links() -> None:
    class Everywhere(NoDirectLinks):
        async def start(self, on_link: LinkHandler) -> str:
            return "/ip4/0.0.0.0/tcp/4001"

    both, direct = transports()
    three = Transports(direct, both._mirrors, Everywhere(), policy=policy())
    assert await three.start(lambda _link: Collector()) == "host:1 /dns/host/tcp/4001"
    await three.close()


async def test_direct_links_work_although_libp2p_does_not_start() -> None:
    class Broken(NoDirectLinks):
        async def start(self, on_link: LinkHandler) -> str:
            raise Unreachable("libp2p does not run")

    both, direct = transports()
    assert (
        await Transports(direct, both._mirrors, Broken(), policy=policy()).start(lambda _link: Collector()) == "host:1"
    )
    await both.close()


async def test_forty_joiners_with_a_mirror_cost_the_origin_nothing(tmp_path: Path) -> None:
    store = ChunkStore(tmp_path / "store", 8)
    stored_version(store, 7)
    store.close()
    state = version_record(7)[1]

    async def join(both: Transports, address: str) -> bytes:
        link = await both.dial(MIRROR, address, "mirror")
        link.start(got := Collector())
        link.send(want(7))
        await got.until(lambda: len(got.messages) == 2)
        count = got.messages[1].have.chunk_count
        link.send(request(7, range(count)))
        await got.until(lambda: len(got.chunks) == count)
        return b"".join(got.chunks[7, index] for index in range(count))

    async with mirror_server(tmp_path / "store") as server:
        joiners = [transports(server.address) for _ in range(40)]
        states = await asyncio.gather(*(join(both, server.address) for both, _ in joiners))
        assert set(states) == {state}
        assert len(states) == 40
        assert len(server.requests) == 80, "one list and one range each"
        for both, direct in joiners:
            assert direct.calls == []
            await both.close()


async def test_a_plan_reaches_no_web_server_through_an_address_that_looks_like_a_mirror(tmp_path: Path) -> None:
    """A member advertised http://127.0.0.1:PORT/..., and peers asked the service on their own loopback interface."""
    store = ChunkStore(tmp_path / "store", 8)
    stored_version(store, 7)
    store.close()
    both, direct = transports()
    async with mirror_server(tmp_path / "store") as server:
        port = server.address.rpartition(":")[2].partition("/")[0]
        https = server.address.replace("http://", "https://")
        named = [
            (server.address, "peer"),
            (server.address, "origin"),
            (server.address, "mirror"),
            ("/etc/passwd", "peer"),
        ]
        for address, role in [*named, ("/etc/passwd", "mirror"), (f"a:1 {server.address}", "peer"), (https, "peer")]:
            with pytest.raises(Unreachable):
                await both.dial(MIRROR, address, role)
        assert both.policy.refused == 7
        far = Transports(direct, both._mirrors, policy=DialPolicy(lambda: "8.8.8.8"))
        for address, role in (*named, (https, "mirror"), (f"127.0.0.1:{port}", "peer"), (f"localhost:{port}", "peer")):
            with pytest.raises(Unreachable):
                await far.dial(MIRROR, address, role)
        assert server.requests == []
        assert direct.calls == []
        await both.close()


async def test_a_silent_address_costs_only_a_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peer.transports.transports._PATIENCE_S", {"punched": 0.02, "relayed": 0.02})
    monkeypatch.setattr("peer.transports.transports._PATIENCE_ELSE_S", 0.02)
    dialled: list[str] = []

    class Silent(NoDirectLinks):
        async def dial(self, peer_id: PeerId, address: str) -> Link:
            dialled.append(address)
            await asyncio.Event().wait()
            raise AssertionError

    class Answers(NoDirectLinks):
        async def dial(self, peer_id: PeerId, address: str) -> Link:
            dialled.append(address)
            return cast(Link, "a link")

    both, _ = transports()
    circuit = "/ip4/5.5.5.9/tcp/4/p2p/relay/p2p-circuit/p2p/origin-1"
    ways = Transports(Silent(), both._mirrors, cast(Any, Answers()), cast(Any, Silent()), policy=policy())
    text = f"{circuit} punch 5.5.5.1:1"
    assert cast(str, await ways.dial(ORIGIN, text)) == "a link"
    assert dialled == ["5.5.5.1:1", "punch", circuit]
    dialled.clear()
    await ways.dial(ORIGIN, text)
    assert dialled == [circuit], "the others failed a moment ago"
    await ways.close()
