from __future__ import annotations

import pytest

from coordinator.rpc.peers import site_of


@pytest.mark.parametrize(
    ("peer", "site"),
    [
        ("ipv4:8.8.4.4:4242", "8.8.4.4"),
        ("ipv4:192.168.1.7:4242", "192.168.1.0/24"),
        ("ipv6:[2001:4860:1:2::7]:4242", "2001:4860:1:2::/64"),
        ("ipv6:%5B2001:4860:1:2::7%5D:4242", "2001:4860:1:2::/64"),
        ("ipv6:[::ffff:8.8.4.4]:4242", "8.8.4.4"),
        ("ipv6:[fe80::1%25eth0]:4242", "fe80::/64"),
        ("ipv4:127.0.0.1:4242", ""),
        ("ipv6:[::1]:4242", ""),
        ("unix:/tmp/socket", ""),
        ("ipv4:nonsense", ""),
        ("", ""),
    ],
)
def test_a_site_is_a_public_address_or_a_local_network(peer: str, site: str) -> None:
    assert site_of(peer) == site
