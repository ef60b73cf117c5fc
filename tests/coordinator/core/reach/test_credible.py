from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.reach.credible import credible_addresses, scope_in
from rollcast.wire.address_scope import Scope, plain_host

OWN = frozenset({"203.0.113.5", "2001:db8::7"})


@pytest.mark.parametrize(
    "address",
    [
        "203.0.113.5:1",
        "[2001:DB8:0::7]:1",
        "[::ffff:203.0.113.5]:1",
        "/ip4/203.0.113.5/tcp/4001",
        "/ip6/2001:db8::7/tcp/4001/p2p/a",
    ],
)
def test_addresses_at_the_hosts_from_which_a_member_is_seen_are_its_own(address: str) -> None:
    assert credible_addresses(address, OWN, "") == (address, ())


@pytest.mark.parametrize(
    "address",
    [
        "203.0.113.6:1",
        "a.example:1",
        "127.0.0.1:80",
        "http://203.0.113.5:1/x",
        "https://203.0.113.5/x",
        "203.0.113.5",
        "203.0.113.5:0",
        "/etc/passwd",
        "/ip4/203.0.113.5/udp/4001",
        "/ip4/203.0.113.6/tcp/4001",
        "/ip4/203.0.113.5/tcp/4001/p2p/relay/p2p-circuit",
        "punch",
    ],
)
def test_others_may_be_a_third_partys(address: str) -> None:
    assert credible_addresses(address, OWN, "") == ("", (address,))
    mixed = credible_addresses(f"203.0.113.5:1 {address}", OWN, "")
    assert mixed == ("203.0.113.5:1", (address,))


def test_a_host_where_a_dial_back_found_the_member_is_its_own() -> None:
    addresses = "a.example:1 /dns4/a.example/tcp/4001 b.example:1"
    found = credible_addresses(addresses, OWN, "a.example:1")
    assert found == ("a.example:1 /dns4/a.example/tcp/4001", ("b.example:1",))


def test_the_operator_vouches_for_the_origin_but_not_for_urls() -> None:
    assert credible_addresses("origin:7401 http://127.0.0.1/x", None, "") == ("origin:7401", ("http://127.0.0.1/x",))


@given(st.text(alphabet="0123456789.:/[]abtcpip4 http", max_size=40))
def test_no_text_leads_to_another_host(text: str) -> None:
    credible, _ = credible_addresses(text, OWN, "")
    for one in credible.split():
        host = one.split("/")[2] if one.startswith("/") else one.rpartition(":")[0].strip("[]")
        assert plain_host(host) in OWN


def test_how_far_addresses_lead() -> None:
    assert scope_in("/ip4/127.0.0.1/tcp/1") is Scope.LOOPBACK
    assert scope_in("10.0.0.1:1") is Scope.PRIVATE
    assert scope_in("a.example:1") is Scope.PUBLIC
