from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.links.addresses import CircuitAddress, P2pAddress, is_circuit_address, is_p2p_address, parse, parse_relay
from rollcast.runtime.errors import Unreachable
from rollcast.wire.identity.identity import peer_id_of

PEER_ID = peer_id_of(bytes(range(32)))  # the same in each process that collects tests
RELAY_ID = peer_id_of(bytes(range(1, 33)))
RELAY = f"/ip4/192.0.2.7/tcp/4001/p2p/{RELAY_ID}"


@pytest.mark.parametrize(
    "address",
    [
        "/ip4/192.0.2.1/tcp/4001",
        "/ip6/2001:db8::1/tcp/1",
        "/dns/a.example/tcp/65535",
        f"/ip4/10.0.0.1/tcp/9/p2p/{PEER_ID}",
    ],
)
def test_an_address_is_parsed_with_its_peer(address: str) -> None:
    assert is_p2p_address(address)
    assert str(parse(address, PEER_ID)) == address.removesuffix(f"/p2p/{PEER_ID}") + f"/p2p/{PEER_ID}"


@pytest.mark.parametrize(
    "address",
    [
        "",
        "10.0.0.1:4001",
        "/ip4/300.0.0.1/tcp/4001",
        "/ip4/::1/tcp/4001",
        "/ip6/10.0.0.1/tcp/4001",
        "/dns/a:b/tcp/4001",
        "/ip4/10.0.0.1/tcp/0",
        "/ip4/10.0.0.1/tcp/65536",
        "/ip4/10.0.0.1/udp/4001/quic-v1",
        "/ip4/10.0.0.1/tcp/4001/ws",
        "/ip4/10.0.0.1/tcp/4001/p2p/12D3KooWsomebodyElse",
        "/ip4/10.0.0.1/tcp/4001\n",
        "/ip4/10.0.0.1/tcp/4001/p2p-circuit",
        f"{RELAY}/p2p-circuitry",
        f"{RELAY}/p2p-circuit/p2p/{RELAY_ID}",
        f"{RELAY}/p2p-circuit/p2p-circuit",
    ],
)
def test_an_address_of_another_peer_cannot_be_dialled(address: str) -> None:
    with pytest.raises(Unreachable):
        parse(address, PEER_ID)


@given(st.text(max_size=100).map(lambda text: "/ip4/" + text))
def test_nonsense_is_unreachable(address: str) -> None:
    with contextlib.suppress(Unreachable):
        parse(address, PEER_ID)


@pytest.mark.parametrize(
    "address", ["a.example:1", "https://a.example/x", "/srv/model.safetensors", "/ip4.safetensors"]
)
def test_other_transports_keep_their_addresses(address: str) -> None:
    assert not is_p2p_address(address)


@pytest.mark.parametrize(("host", "shown"), [("10.0.0.1", "/ip4/10.0.0.1"), ("::1", "/ip6/::1"), ("a.b", "/dns/a.b")])
def test_the_form_follows_the_host(host: str, shown: str) -> None:
    assert str(P2pAddress.of(host, 7)) == f"{shown}/tcp/7"


def test_an_address_through_a_relay_names_both() -> None:
    address = f"{RELAY}/p2p-circuit/p2p/{PEER_ID}"
    assert is_circuit_address(address)
    assert not is_circuit_address(RELAY)
    found = parse(address, PEER_ID)
    assert found == CircuitAddress(P2pAddress("ip4", "192.0.2.7", 4001, RELAY_ID), PEER_ID)
    assert str(found) == address
    assert parse(f"{RELAY}/p2p-circuit", PEER_ID) == found


def test_a_relay_is_named_by_its_address() -> None:
    assert str(parse_relay(RELAY)) == RELAY
    assert parse_relay("/ip4/192.0.2.7/tcp/4001") is None
    assert parse_relay(f"{RELAY}/p2p-circuit/p2p/{PEER_ID}") is None
