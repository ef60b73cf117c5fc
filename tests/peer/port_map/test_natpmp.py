"""Test the bytes of RFC 6886, and the client against a real UDP server on loopback."""

from __future__ import annotations

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.port_map import router_socket
from peer.port_map.core import Mapped
from peer.port_map.natpmp import MappedPort, NatPmp, OutsideAddress, Refused, ask_address, ask_mapping, parse
from rollcast.runtime.errors import MalformedMessage, Unreachable
from tests.peer.port_map.routers import OUTSIDE_IP, NatPmpRouter


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_socket, "FIRST_WAIT_S", 0.02)


async def test_ports_are_mapped_and_unmapped() -> None:
    async with NatPmpRouter().open() as router, NatPmp.open("127.0.0.1", router.port) as client:
        router.lease_s_most = 1800
        got = await client.map_ports([(7420, 7420), (7421, 7420)], 3600)
        assert got == Mapped("NAT-PMP", OUTSIDE_IP, ((7420, 7420), (7421, 7421)), 1800)
        await client.unmap([7420])
        assert router.mapped == {7421: (7421, 1800)}


async def test_lost_packets_are_sent_again() -> None:
    async with NatPmpRouter().open() as router, NatPmp.open("127.0.0.1", router.port) as client:
        router.deaf_to = 3
        assert (await client.map_ports([(7420, 7420)], 3600)).ports == ((7420, 7420),)


async def test_a_refusal_has_the_routers_reason() -> None:
    async with NatPmpRouter().open() as router, NatPmp.open("127.0.0.1", router.port) as client:
        router.result = 2
        with pytest.raises(Unreachable) as caught:
            await client.map_ports([(7420, 7420)], 3600)
        assert caught.value.cause == "port mapping is turned off in its settings"


async def test_a_mapping_without_a_lease_is_an_error() -> None:
    async with NatPmpRouter().open() as router, NatPmp.open("127.0.0.1", router.port) as client:
        router.lease_s_most = 0
        with pytest.raises(Unreachable, match="no lease"):
            await client.map_ports([(7420, 7420)], 3600)


async def test_a_router_without_an_answer_is_an_error() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        async with NatPmp.open("127.0.0.1", silent.getsockname()[1]) as client:
            with pytest.raises(Unreachable, match="does not answer"):
                await client.map_ports([(7420, 7420)], 3600)
        closed = silent.getsockname()[1]
    async with NatPmp.open("127.0.0.1", closed) as client:
        with pytest.raises(Unreachable, match="has no NAT-PMP"):
            await client.map_ports([(7420, 7420)], 3600)


def test_requests_are_those_of_the_rfc() -> None:
    assert ask_address() == bytes([0, 0])
    assert ask_mapping(7420, 7421, 3600) == bytes.fromhex("000200001cfc1cfd00000e10")


def test_answers_are_read() -> None:
    assert parse(bytes.fromhex("0080000000000005cb007105")) == OutsideAddress("203.0.113.5")
    assert parse(bytes.fromhex("00820000000000051cfc9c4100000708")) == MappedPort(7420, 40001, 1800)
    refused = parse(bytes.fromhex("00820002000000051cfc000000000000"))
    assert refused == Refused("port mapping is turned off in its settings")
    assert parse(bytes.fromhex("00800063")) == Refused("result 99")


@given(st.binary(max_size=20))
def test_any_packet_is_an_answer_or_refused(data: bytes) -> None:
    try:
        answer = parse(data)
    except MalformedMessage:
        return
    assert isinstance(answer, OutsideAddress | MappedPort | Refused)


@given(st.integers(0, 65535), st.integers(0, 65535), st.integers(0, 2**32 - 1))
def test_a_mapping_is_read_as_it_was_written(inside: int, outside: int, lease_s: int) -> None:
    data = struct.pack("!BBHIHHI", 0, 130, 0, 7, inside, outside, lease_s)
    assert parse(data) == MappedPort(inside, outside, lease_s)


@pytest.mark.parametrize("data", [b"", b"\x00\x82\x00", bytes.fromhex("02820000"), bytes(16)])
def test_a_packet_that_is_no_answer_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        parse(data)
