"""Test links through a relay: the conformance suite of links, and faults that only a relay can have."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("libp2p")

import trio

from peer.config import LinkConfig
from peer.links.traffic import LinkTraffic
from peer.links.transport import Admission, ChunkTransport, LinkLimits
from peer.p2p.circuits.book import CircuitBook
from peer.p2p.circuits.relay import CircuitRelay
from peer.p2p.streams.limits import HostLimits
from peer.p2p.transport import P2pTransport
from rollcast.runtime.errors import Unreachable
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.tls import TlsCredentials
from rollcast.wire.ids import RunId
from tests.peer.links.link_run import LinkRun
from tests.peer.links.transport_conformance import LIMITS, Pair, TransportConformance, anyone, push, want
from tests.peer.p2p.circuits.relayed import CAPS, RelayedPair, relayed_pair
from tests.peer.p2p.test_host import in_trio, until


class TestRelayedLinks(TransportConformance):
    def make(
        self, identity: Identity, credentials: TlsCredentials, run_id: RunId, admit: Admission, limits: LinkLimits
    ) -> ChunkTransport:
        raise NotImplementedError

    @asynccontextmanager
    async def pair(
        self,
        folder: Path,
        *,
        admit: Admission = anyone,
        dialler_run: LinkRun | None = None,
        limits: LinkLimits = LIMITS,
    ) -> AsyncIterator[Pair]:
        async with relayed_pair(folder, admit=admit, dialler_run=dialler_run, limits=limits) as pair:
            yield pair

    async def test_a_dial_reaches_the_named_peer_or_fails(self, tmp_path: Path) -> None:
        async with self.pair(tmp_path) as pair:
            somebody_else = LinkRun(tmp_path / "x").member("peer")[0]
            with pytest.raises(Unreachable, match="no reservation"):
                await pair.dialler.dial(somebody_else, pair.address)
            assert pair.accepted.empty()


async def open_circuits(pair: RelayedPair) -> int:
    async def count(_host: Any) -> int:
        circuits: int = pair.relay._thread._host.relay.book.circuits
        return circuits

    counted: int = await in_trio(pair.relay, count)
    return counted


async def test_a_link_is_shown_as_relayed_and_is_one_circuit(tmp_path: Path) -> None:
    async with relayed_pair(tmp_path) as pair:
        dialled, accepted = await pair.ends()
        assert dialled.link.transport == accepted.link.transport == "relayed"
        assert await open_circuits(pair) == 1
        dialled.link.close("")
        await accepted.ended()
        while await open_circuits(pair):
            pass


async def test_two_links_to_one_peer_end_independently(tmp_path: Path) -> None:
    async with relayed_pair(tmp_path) as pair:
        first, first_accepted = await pair.ends()
        second, second_accepted = await pair.ends()
        first.link.close("")
        await first_accepted.ended()
        second.link.send(want(5))
        assert (await second_accepted.message()).want.version == 5


async def test_relayed_bytes_count_in_the_relays_traffic(tmp_path: Path) -> None:
    traffic = LinkTraffic(LinkConfig())
    async with relayed_pair(tmp_path, traffic=traffic) as pair:
        link, accepted = await pair.dial()
        push(link, 64)
        await accepted.until(lambda: len(accepted.came) == 64)
        sent, received = traffic.moved_far_bytes
        assert sent == received
        assert 64 * 65536 <= sent < 80 * 65536
        assert pair.relay.state == f"running, {sent / 1e6:.0f} MB passed on for others"
        assert pair.listener.state == "running"  # type: ignore[attr-defined]


async def test_the_cap_on_relayed_bytes_is_kept(tmp_path: Path) -> None:
    async with relayed_pair(tmp_path, caps=replace(CAPS, bytes_per_second=2e6)) as pair:
        link, accepted = await pair.dial()
        loop = pair.relay._loop
        began_s = loop.time()
        push(link, 40)
        await accepted.until(lambda: len(accepted.came) == 40)
        assert loop.time() - began_s > 0.8, "2.6 MB less a portion or two"


async def test_a_circuit_ends_after_its_bytes(tmp_path: Path) -> None:
    async with relayed_pair(tmp_path, caps=replace(CAPS, circuit_bytes=1 << 20)) as pair:
        link, accepted = await pair.dial()
        dialled = push(link, 200)
        await dialled.ended()
        await accepted.ended()
        assert 0 < link.bytes_sent < 16 << 20
        await pair.ends()


async def test_a_circuit_ends_after_its_time(tmp_path: Path) -> None:
    async with relayed_pair(tmp_path, caps=replace(CAPS, circuit_s=3.0)) as pair:
        dialled, _ = await pair.ends()
        await dialled.ended()


async def test_without_sending_circuits_end_and_none_begins(tmp_path: Path) -> None:
    async with relayed_pair(tmp_path) as pair:
        dialled, _ = await pair.ends()
        pair.relay.allow_relaying(allowed=False)
        await dialled.ended()
        with pytest.raises(Unreachable, match="resource limit exceeded"):
            await pair.dialler.dial(pair.peer_id, pair.address)
        pair.relay.allow_relaying(allowed=True)
        await pair.ends()


def test_a_circuit_that_opens_after_relaying_was_stopped_passes_nothing() -> None:
    class Stream:
        async def open(self) -> None:
            await trio.lowlevel.checkpoint()
            opened.append(self)

        async def receive(self) -> bytes:
            await trio.sleep_forever()
            raise AssertionError

    opened: list[Stream] = []
    host: Any = SimpleNamespace(set_stream_handler=lambda *_: None)
    unused: Any = None
    relay = CircuitRelay(host, CircuitBook(CAPS), unused, lambda _: True, HostLimits())

    async def join() -> None:
        one: Any = Stream()
        relay.allow(allowed=False)
        with trio.fail_after(5.0):
            await relay._join_opened(one, one)

    trio.run(join)
    assert opened == []


async def test_a_stranger_gets_no_reservation(tmp_path: Path) -> None:
    async with relayed_pair(tmp_path) as pair:
        stranger_run = LinkRun(tmp_path / "other", "run-2")
        peer_id, credentials = stranger_run.member("peer")
        stranger = P2pTransport(stranger_run.identities[peer_id], credentials, stranger_run.run_id, anyone)
        told: list[tuple[str, ...]] = []
        stranger.on_circuits = told.append
        await stranger.start(pair.accept)
        stranger.want_relays([pair.relay_address])
        with pytest.raises(Unreachable):
            await stranger.dial(pair.peer_id, pair.address)
        assert told == []
        await stranger.close()


async def test_a_reservation_is_renewed_after_the_relay_restarts(tmp_path: Path) -> None:
    async def die() -> None:
        raise RuntimeError("on purpose")

    async with relayed_pair(tmp_path) as pair:
        told: list[tuple[str, ...]] = []
        listener: Any = pair.listener
        listener.on_circuits = told.append
        thread = pair.relay._thread
        thread._call_host(lambda: thread._nursery.start_soon(die))
        await until(lambda: told)
        assert told == [()]
        await until(lambda: len(told) == 2)
        await pair.ends()


async def test_unused_connections_end_and_those_with_a_reservation_stay(tmp_path: Path) -> None:
    async def count(host: Any) -> int:
        return len(host.get_network().get_connections())

    async with relayed_pair(tmp_path, host_limits=HostLimits(strangers_timeout_s=2.0)) as pair:
        dialled, accepted = await pair.ends()
        dialled.link.close("")
        await accepted.ended()
        while await in_trio(pair.dialler, count):
            pass
        assert await in_trio(pair.listener, count) == 1
        await pair.ends()


async def test_a_peer_that_relays_nothing_says_so(tmp_path: Path) -> None:
    async with relayed_pair(tmp_path, caps=None) as pair:
        assert not pair.relay.relays_for_others
        with pytest.raises(Unreachable):
            await pair.dialler.dial(pair.peer_id, pair.address)
