"""Test what libp2p counts, with real hosts (trio) on loopback."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("libp2p")

import trio
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from peer.p2p.libp2p_host import make_host
from peer.p2p.streams.limits import HostLimits
from peer.p2p.streams.resources import Resources
from rollcast.wire.identity.identity import Identity


def places_taken(host: Any) -> int:
    """Return the number of connections that a host's manager counts."""
    manager = host.get_network()._resource_manager
    assert isinstance(manager, Resources)
    return int(manager._current_connections)


async def settle(host: Any, connections: int) -> None:
    with trio.fail_after(10.0):
        while places_taken(host) != connections:  # noqa: ASYNC110 - libp2p does not tell
            await trio.sleep(0.02)


async def knock(port: int) -> None:
    """Connect and disconnect: without a byte, with another protocol, and with nonsense."""
    for said in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(200)):
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        if said:
            await stream.send_all(said)
        await stream.aclose()


def test_dials_that_are_cancelled_take_no_place() -> None:
    nobody = ID.from_string(Identity.generate().peer_id)

    async def main() -> None:
        host = make_host(Identity.generate(), HostLimits())
        with trio.socket.socket() as silent:
            await silent.bind(("127.0.0.1", 0))
            silent.listen()
            address = Multiaddr(f"/ip4/127.0.0.1/tcp/{silent.getsockname()[1]}")
            async with host.run([]):
                for _ in range(3):
                    with trio.move_on_after(0.05) as scope:
                        await host.get_network().dial_addr(address, nobody)
                    assert scope.cancelled_caught
                await settle(host, 0)

    trio.run(main)


def test_connections_take_their_places_until_they_end() -> None:
    async def main() -> None:
        one, other = (make_host(Identity.generate(), HostLimits()) for _ in range(2))
        async with one.run([]), other.run([Multiaddr("/ip4/127.0.0.1/tcp/0")]):
            port = other.get_addrs()[0].value_for_protocol("tcp")
            await knock(int(port))
            connection = await one.get_network().dial_addr(Multiaddr(f"/ip4/127.0.0.1/tcp/{port}"), other.get_id())
            for host in (one, other):
                await settle(host, 1)
            await connection.close()
            for host in (one, other):
                await settle(host, 0)

    trio.run(main)
