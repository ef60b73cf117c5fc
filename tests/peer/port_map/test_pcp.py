"""Test the bytes of RFC 6887, and the client against a real UDP server on loopback."""

from __future__ import annotations

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.port_map import router_socket
from peer.port_map.core import Mapped
from peer.port_map.pcp import (
    ANSWER_BYTES_MAX,
    LEASE_S_MAX,
    REFUSED_S_MAX,
    MapAnswer,
    Pcp,
    PortRefused,
    ask_mapping,
    parse,
)
from rollcast.runtime.errors import MalformedMessage, Unreachable
from tests.peer.port_map.routers import OUTSIDE_IPV6, PcpRouter

NONCE = bytes(range(12))


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_socket, "FIRST_WAIT_S", 0.02)


def answer(
    *, version: int = 2, kind: int = 129, result: int = 0, lease_s: int = 1800, protocol: int = 6, more: bytes = b""
) -> bytes:
    header = struct.pack("!BBxBII12x", version, kind, result, lease_s, 7)
    ip = socket.inet_pton(socket.AF_INET6, OUTSIDE_IPV6)
    return header + struct.pack("!12sB3xHH16s", NONCE, protocol, 7420, 7421, ip) + more


async def test_ports_are_opened_and_closed() -> None:
    async with PcpRouter().open() as router, Pcp.open("::1", "::1", NONCE, router.port) as client:
        router.lease_s_most = 1800
        got = await client.map_ports([(7420, 7420), (7421, 7421)], 3600)
        assert got == Mapped("PCP", OUTSIDE_IPV6, ((7420, 7420), (7421, 7421)), 1800)
        await client.unmap([7420])
        assert router.opened == {7421: (NONCE, 1800)}


async def test_a_restarted_process_renews_and_another_nonce_is_refused() -> None:
    async with PcpRouter().open() as router:
        for _ in range(2):
            async with Pcp.open("::1", "::1", NONCE, router.port) as client:
                await client.map_ports([(7420, 7420)], 3600)
        async with Pcp.open("::1", "::1", bytes(12), router.port) as stranger:
            with pytest.raises(PortRefused) as caught:
                await stranger.map_ports([(7420, 7420)], 3600)
        assert caught.value.holds_s == 1800  # of the lease of 3600, as far as a refusal is believed
        assert "another program opened this one" in caught.value.cause
        assert router.opened == {7420: (NONCE, 3600)}


async def test_an_address_that_leads_nowhere_is_an_error() -> None:
    async with PcpRouter().open() as router, Pcp.open("::1", "::1", NONCE, router.port) as client:
        router.outside_ip = "fd00::7"
        with pytest.raises(Unreachable, match="no public address") as caught:
            await client.map_ports([(7420, 7420)], 3600)
        assert caught.value.cause == "fd00::7"


async def test_a_mapping_without_a_lease_is_an_error() -> None:
    async with PcpRouter().open() as router, Pcp.open("::1", "::1", NONCE, router.port) as client:
        router.lease_s_most = 0
        with pytest.raises(Unreachable, match="no lease"):
            await client.map_ports([(7420, 7420)], 3600)


async def test_a_router_without_pcp_is_an_error() -> None:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as silent:
        silent.bind(("::1", 0))
        port = silent.getsockname()[1]
        async with Pcp.open("::1", "::1", NONCE, port) as client:
            with pytest.raises(Unreachable, match="does not answer over PCP"):
                await client.map_ports([(7420, 7420)], 3600)
    async with Pcp.open("::1", "::1", NONCE, port) as client:
        with pytest.raises(Unreachable, match="has no PCP"):
            await client.map_ports([(7420, 7420)], 3600)


def test_requests_are_those_of_the_rfc() -> None:
    data = ask_mapping("2001:db8::7", NONCE, 7420, 7421, 3600)
    header = "0201 0000 00000e10 20010db8000000000000000000000007"
    mapping = "000102030405060708090a0b 06 000000 1cfc 1cfd" + "00" * 16
    assert data == bytes.fromhex(header + mapping)


def test_answers_are_read() -> None:
    assert parse(answer()) == MapAnswer(NONCE, 7420, 7421, OUTSIDE_IPV6, 1800)
    assert parse(answer(more=bytes(8))) == parse(answer())  # options that were not asked for
    assert parse(answer(lease_s=2**32 - 1)).lease_s == LEASE_S_MAX
    full = parse(answer(result=8, lease_s=30))
    assert (full.refusal, full.lease_s) == ("its table of mappings is full", 30)
    assert parse(answer(result=8, lease_s=2**32 - 1)).lease_s == REFUSED_S_MAX
    assert parse(answer(result=99)).refusal == "result 99"
    assert parse(answer(version=3, result=1)).refusal == "it supports another version of PCP"


def test_an_outside_address_of_ipv4_is_written_as_one() -> None:
    mapped = answer()[:-16] + socket.inet_pton(socket.AF_INET6, "::ffff:192.0.2.7")
    assert parse(mapped).outside_ip == "192.0.2.7"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        answer()[:-1],
        answer()[:-4],
        answer(more=b"\x00"),
        answer(more=bytes(ANSWER_BYTES_MAX - 56)),
        answer(version=1),
        answer(kind=1),  # a request
        answer(kind=130),  # the answer to PEER
        answer(protocol=17),
    ],
    ids=["nothing", "cut", "short", "odd", "long", "version", "request", "operation", "protocol"],
)
def test_a_packet_that_is_no_answer_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        parse(data)


@given(st.binary(max_size=80) | st.binary(min_size=24, max_size=80).map(lambda tail: answer()[:24] + tail))
def test_any_packet_is_an_answer_within_its_limits_or_refused(data: bytes) -> None:
    try:
        found = parse(data)
    except MalformedMessage:
        return
    assert found.lease_s <= (REFUSED_S_MAX if found.refusal else LEASE_S_MAX)
    assert len(found.nonce) == 12


@given(st.binary(min_size=12, max_size=12), st.integers(0, 65535), st.integers(0, 65535), st.integers(0, LEASE_S_MAX))
def test_a_request_that_a_router_echoes_is_read_as_it_was_written(
    nonce: bytes, inside: int, outside: int, lease_s: int
) -> None:
    request = ask_mapping("2001:db8::7", nonce, inside, outside, lease_s)
    echoed = struct.pack("!BBxBII12x", 2, 129, 0, lease_s, 7) + request[24:]
    assert parse(echoed) == MapAnswer(nonce, inside, outside, "::", lease_s)
