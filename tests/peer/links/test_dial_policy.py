from __future__ import annotations

import pytest

from peer.links.dial_policy import DialPolicy, resolve
from rollcast.runtime.errors import Unreachable
from rollcast.wire.ids import PeerId

A, B = PeerId("a"), PeerId("b")
NAMES = {
    "far.example": ["8.8.8.8", "2606:4700::1"],
    "rebound.example": ["8.8.8.8", "127.0.0.1"],
    "lan.example": ["10.0.0.9"],
    "here.example": ["127.0.0.1"],
}


async def known(name: str) -> list[str]:
    if name not in NAMES:
        raise Unreachable(f"{name} has no address")
    return NAMES[name]


def policy(coordinator: str) -> DialPolicy:
    return DialPolicy(lambda: coordinator, known)


@pytest.mark.parametrize(
    ("coordinator", "address", "dialled"),
    [
        ("8.8.8.8", "9.9.9.9:1", ["9.9.9.9:1"]),
        ("8.8.8.8", "far.example:1", ["8.8.8.8:1", "[2606:4700::1]:1"]),
        ("8.8.8.8", "/dns4/far.example/tcp/4", ["/ip4/8.8.8.8/tcp/4/p2p/a", "/ip6/2606:4700::1/tcp/4/p2p/a"]),
        ("10.0.0.1", "192.168.1.2:1", ["192.168.1.2:1"]),
        ("lan.example", "192.168.1.2:1", ["192.168.1.2:1"]),
        ("127.0.0.1", "127.0.0.2:1", ["127.0.0.2:1"]),
        ("here.example", "here.example:1", ["127.0.0.1:1"]),
        ("8.8.8.8", "punch", ["punch"]),
    ],
)
async def test_addresses_that_lead_as_far_as_the_coordinator_are_dialled(
    coordinator: str, address: str, dialled: list[str]
) -> None:
    assert await policy(coordinator).allowed(A, address) == dialled


@pytest.mark.parametrize(
    ("coordinator", "address"),
    [
        *(("8.8.8.8", one) for one in ("127.0.0.1:1", "[::1]:1", "10.0.0.1:1", "169.254.169.254:80", "0.0.0.0:1")),
        *(("8.8.8.8", one) for one in ("rebound.example:1", "lan.example:1", "unknown.example:1", "224.0.0.1:1")),
        *(("far.example", one) for one in ("/ip4/127.0.0.1/tcp/1", "/dns/here.example/tcp/1", "[::ffff:10.0.0.1]:1")),
        ("8.8.8.8", "/ip4/10.0.0.1/tcp/4/p2p/relay/p2p-circuit/p2p/a"),
        ("10.0.0.1", "127.0.0.1:1"),
        ("10.0.0.1", "169.254.169.254:80"),
        ("rebound.example", "127.0.0.1:1"),
        ("unknown.example", "10.0.0.1:1"),
        *(
            ("127.0.0.1", one)
            for one in ("http://127.0.0.1:1/x", "/etc/passwd", "a b:1", "", "/ip4/127.0.0.1/tcp/1/p2p/b")
        ),
    ],
)
async def test_other_addresses_are_refused(coordinator: str, address: str) -> None:
    with pytest.raises(Unreachable):
        await policy(coordinator).allowed(A, address)


async def test_peers_of_the_local_network_are_dialled_at_private_addresses() -> None:
    rule = policy("8.8.8.8")
    rule.know_near("plan", [A])
    rule.know_near("found", [B])
    for peer_id in (A, B):
        assert await rule.allowed(peer_id, "192.168.1.2:1") == ["192.168.1.2:1"]
        for never in ("127.0.0.1:1", "169.254.169.254:80"):
            with pytest.raises(Unreachable, match="refused"):
                await rule.allowed(peer_id, never)
    rule.know_near("plan", [])
    with pytest.raises(Unreachable, match="private"):
        await rule.allowed(A, "192.168.1.2:1")
    assert rule.refused == 5


async def test_an_owner_may_open_private_networks() -> None:
    rule = DialPolicy(lambda: "8.8.8.8", known, ["10.0.0.0/8"])
    assert await rule.allowed(A, "10.9.9.9:1") == ["10.9.9.9:1"]
    with pytest.raises(Unreachable, match="private"):
        await rule.allowed(A, "192.168.1.2:1")


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("https://far.example/run", True),
        ("https://far.example:8443/run", True),
        *(
            (one, False)
            for one in ("http://far.example/run", "https://rebound.example/", "https://127.0.0.1/", "file:///x")
        ),
        *((one, False) for one in ("https://user@far.example/", "https://10.0.0.1:8/x", "ftp://far.example", "/etc/x")),
    ],
)
async def test_mirrors_of_a_plan(address: str, allowed: bool) -> None:
    rule = policy("8.8.8.8")
    if allowed:
        await rule.allow_mirror(address)
    else:
        with pytest.raises(Unreachable, match="refused"):
            await rule.allow_mirror(address)
    assert rule.refused == (not allowed)


async def test_the_systems_names() -> None:
    assert "127.0.0.1" in await resolve("localhost")
    with pytest.raises(Unreachable, match="no address"):
        await resolve("a..b")
