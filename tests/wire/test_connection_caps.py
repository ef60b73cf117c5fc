"""Test which idle connections are closed."""

from __future__ import annotations

import time

from rollcast.wire.connection_caps import excess


def test_the_oldest_of_an_address_beyond_its_share_are_closed() -> None:
    idle = [("192.0.2.1", number) for number in range(5)] + [("192.0.2.2", 9)]
    assert excess(idle, per_address=3, most=100) == [0, 1]
    assert excess([], per_address=3, most=0) == []


def test_beyond_the_limit_of_all_the_address_with_the_most_loses() -> None:
    idle = [("192.0.2.1", number) for number in range(5)] + [("192.0.2.2", 8), ("192.0.2.2", 9)]
    assert excess(idle, per_address=100, most=4) == [0, 1, 2]
    assert len(excess(idle, per_address=100, most=0)) == 7


def test_a_returning_fleet_of_many_addresses_takes_no_time() -> None:
    idle = [(f"10.0.{number >> 8}.{number & 255}", number) for number in range(10_000)]
    began_s = time.process_time()
    assert excess(idle, per_address=8, most=4_000) == [*range(6_000)]
    assert time.process_time() - began_s < 1.0, "the loop waits for it once a second; the addresses took 3 s"


def test_a_customers_ipv6_network_is_one_address() -> None:
    one = [(f"2001:db8:0:1::{number:x}", number) for number in range(1, 5)]
    other = [("2001:db8:0:2::1", 7)]
    assert excess(one + other, per_address=2, most=100) == [1, 2]
    assert excess([("::ffff:192.0.2.1", 1), ("192.0.2.1", 2)], per_address=1, most=100) == [1]
