"""The book of members' addresses, and the settings by which third parties are never dialled."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.core.events.reach_events import ReachabilityTold, SeenAt
from coordinator.core.reach import address_book as book_module
from coordinator.core.reach.address_book import ReachBook, host_part
from coordinator.core.reach.dial_settings import DialBackSettings, is_numeric
from coordinator.core.reach.holes import IPV6, RESTRICTED
from rollcast.wire.ids import PeerId

A = PeerId("a")

HOST = "192.0.2.7"


def report(**changes: Any) -> ReachabilityTold:
    values: dict[str, Any] = {"peer_id": A, "nat": "port-restricted", "punch_address": f"{HOST}:7000"}
    return ReachabilityTold(**(values | changes))


def book(address: str = "") -> ReachBook:
    made = ReachBook()
    made.joined(A, HOST, address)
    return made


def test_reports_are_used_for_planning() -> None:
    reach = book()
    assert reach.of(A).for_planning == ("", 0, (), "")
    assert reach.reported(report(circuits=("/ip4/1.2.3.4/tcp/1",))) == ""
    assert reach.take_changed()
    assert reach.of(A).for_planning == ("", 2, ("/ip4/1.2.3.4/tcp/1",), "")
    reach.reported(report(circuits=("/ip4/1.2.3.4/tcp/1",), relay_address="/ip4/192.0.2.7/tcp/4001"))
    assert not reach.take_changed()
    assert reach.of(A).relay_address == "/ip4/192.0.2.7/tcp/4001"


def test_the_port_of_a_third_party_is_rejected() -> None:
    reach = book()
    assert "192.0.2.99:7000" in reach.reported(report(punch_address="192.0.2.99:7000"))
    assert reach.reported(report(punch_address="192.0.2.99:7000")) == ""  # no news any more
    assert reach.of(A).punch_address == ""
    assert reach.of(A).hole == 0
    assert reach.reported(report()) == ""
    assert reach.of(A).hole == 2


def test_a_peer_that_reconnects_without_a_nat_report_keeps_its_nat() -> None:
    reach = book()
    reach.reported(report())
    assert reach.of(A).reported
    reach.joined(A, HOST, "")
    assert not reach.of(A).reported
    reach.reported(report(nat="", punch_address=f"{HOST}:8000"))
    assert (reach.of(A).nat, reach.of(A).hole, reach.of(A).reported) == ("port-restricted", 2, True)


def test_failures_at_an_earlier_port_are_discarded() -> None:
    reach, other = book(), PeerId("b")
    reach.reported(report())
    reach.failures.failed(A, other, 0.0)
    reach.reported(report())
    reach.joined(A, HOST, "")
    reach.take_changed()
    reach.reported(report())
    assert reach.failures.of(A) == frozenset({other}), "a session that broke off changes nothing"
    reach.take_changed()
    reach.reported(report(punch_address=f"{HOST}:8000"))
    assert not reach.failures.of(A)
    assert reach.take_changed()


def test_a_failed_pair_may_retry_at_another_local_address() -> None:
    reach, other = book(), PeerId("b")
    reach.reported(report(local_address="192.168.1.2:7420"))
    reach.failures.failed(A, other, 0.0)
    reach.take_changed()
    reach.reported(report(local_address="192.168.1.2:7420"))
    assert (reach.take_changed(), reach.failures.of(A)) == (False, frozenset({other}))
    reach.reported(report(local_address="192.168.1.3:7420"))
    assert (reach.take_changed(), reach.failures.of(A)) == (True, frozenset())


def test_a_port_may_be_seen_at_another_address_than_the_session() -> None:
    reach = book()
    reach.seen(SeenAt(A, "2001:db8::7"))
    reach.seen(SeenAt(A, "198.51.100.9"))
    assert reach.reported(report(punch_address="198.51.100.9:1", punch_address_ipv6="[2001:DB8:0::7]:7000")) == ""
    assert (reach.of(A).punch_address, reach.of(A).punch_address_ipv6) == ("198.51.100.9:1", "[2001:DB8:0::7]:7000")
    assert reach.of(A).hole == RESTRICTED + IPV6
    reach.seen(SeenAt(A, f"::ffff:{HOST}"))  # IPv4 at a socket for both
    assert "198.51.100.9" in reach.reported(report(punch_address="198.51.100.9:1"))
    assert "[2001:db8::8]" in reach.reported(report(punch_address_ipv6="[2001:db8::8]:7000"))
    assert reach.of(A).hole == RESTRICTED


def test_another_port_over_ipv6_is_a_reason_to_try_failed_pairs_again() -> None:
    reach = book()
    reach.seen(SeenAt(A, "2001:db8::7"))
    reach.reported(report(punch_address_ipv6="[2001:db8::7]:7000"))
    other = PeerId("other")
    reach.failures.failed(A, other, 0.0)
    reach.reported(report(punch_address_ipv6="[2001:db8::7]:7000"))
    assert reach.failures.of(A) == frozenset({other})
    reach.reported(report(punch_address_ipv6="[2001:db8::7]:7001"))
    assert reach.failures.of(A) == frozenset()


def test_an_unreachable_address_counts_as_none_until_there_is_another() -> None:
    reach = book(f"{HOST}:1")
    assert reach.of(A).address == f"{HOST}:1"
    reach.found(A, dialable=True, address=f"{HOST}:1")
    assert not reach.take_changed()
    reach.found(A, dialable=False, address=f"{HOST}:1")
    assert reach.take_changed()
    assert (reach.of(A).address, reach.of(A).advertised) == ("", f"{HOST}:1")
    reach.reported(report(advertise=f"{HOST}:2"))
    assert reach.take_changed()
    assert reach.of(A).address == f"{HOST}:2"


def test_a_peer_that_returns_from_the_same_host_is_known_and_from_another_is_not() -> None:
    reach = book("a:1")
    reach.reported(report())
    reach.left(A)
    assert reach.joined(A, HOST, "a:1").hole == 2
    reach.left(A)
    assert reach.joined(A, "192.0.2.8", "a:1").hole == 0


def test_identities_that_left_are_discarded_beyond_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book_module, "_REMEMBERED_MOST", 2)
    reach = book()
    for number in range(4):
        reach.joined(PeerId(str(number)), HOST, "x:1")
        reach.left(PeerId(str(number)))
    reach.joined(PeerId("new"), HOST, "x:1")
    known = [name for name in "0123" if reach.of(PeerId(name)).host]
    assert known == ["2", "3"]
    assert reach.of(A).host == HOST  # it is here


@pytest.mark.parametrize(("address", "host"), [("1.2.3.4:5", "1.2.3.4"), ("[2001:db8::1]:5", "2001:db8::1"), ("x", "")])
def test_the_host_of_an_address(address: str, host: str) -> None:
    assert host_part(address) == host


@pytest.mark.parametrize(
    ("address", "host", "networks", "may"),
    [
        ("192.0.2.1", "192.0.2.1", (), True),
        ("192.0.2.2", "192.0.2.1", (), False),
        ("192.0.2.1", "", (), False),
        ("198.51.100.7", "192.0.2.1", ("198.51.100.0/24",), True),
        ("198.51.101.7", "192.0.2.1", ("198.51.100.0/24", "2001:db8::/32"), False),
        ("2001:db8::1", "2001:db8:0::1", (), True),
        ("2001:db8::1", "192.0.2.1", (), False),
    ],
)
def test_only_the_host_that_asks_and_what_the_operator_allows(
    address: str, host: str, networks: tuple[str, ...], may: bool
) -> None:
    assert DialBackSettings(networks=networks).allow(address, host) is may


def test_addresses_are_no_names() -> None:
    assert is_numeric("192.0.2.1")
    assert is_numeric("2001:db8::1")
    assert not is_numeric("example.org")
    assert not is_numeric("")
