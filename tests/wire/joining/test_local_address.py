from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.wire.joining.local_address import is_local, local_address, read_local_address


@pytest.mark.parametrize(
    "text", ["10.1.2.3:7420", "172.31.0.1:1", "192.168.1.2:65535", "169.254.9.9:80", "[fd00::7]:7420"]
)
def test_addresses_of_local_networks_are_read_as_they_are_written(text: str) -> None:
    assert read_local_address(text) == text
    assert is_local(ip_address(text.rpartition(":")[0].strip("[]")))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "127.0.0.1:7420",
        "0.0.0.0:7420",
        "192.0.2.1:7420",
        "8.8.8.8:53",
        "100.64.0.1:7420",  # a provider's network is no local one
        "172.32.0.1:7420",
        "224.0.0.1:7420",
        "[fe80::1]:7420",
        "[fe80::1%eth0]:7420",
        "[2001:db8::1]:7420",
        "[::ffff:192.168.1.2]:7420",
        "192.168.1.2",
        "192.168.1.2:0",
        "192.168.1.2:65536",
        "192.168.1.2:\N{SUPERSCRIPT TWO}",
        "192.168.1.2:7420 10.0.0.1:7420",
        "router.lan:7420",
    ],
)
def test_other_texts_are_no_local_address(text: str) -> None:
    assert read_local_address(text) == ""


@given(st.text(max_size=90))
def test_any_text_is_a_short_address_or_none(text: str) -> None:
    assert len(read_local_address(text)) <= 64


@given(st.ip_addresses(), st.integers(-1, 70_000))
def test_a_written_address_reads_back(ip: object, port: int) -> None:
    text = local_address(str(ip), port)
    assert read_local_address(text) == text
    assert bool(text) == (is_local(ip_address(str(ip))) and 0 < port < 65536)
