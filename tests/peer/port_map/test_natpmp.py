"""Bytes of RFC 6886."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.port_map.natpmp import MappedPort, OutsideAddress, Refused, ask_address, ask_mapping, parse
from rollcast.runtime.errors import MalformedMessage


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
def test_whatever_comes_is_an_answer_or_refused(data: bytes) -> None:
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
def test_what_is_no_answer_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        parse(data)
