from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.discovery.mdns_record import Nearby, instance_name, parse_nearby, properties_of, run_mark
from rollcast.wire.identity.identity import Identity

PEER_ID = Identity.generate().peer_id
SAID = {key.encode(): value.encode() for key, value in properties_of(PEER_ID, "origin", "run-1").items()}


def test_an_announcement_is_parsed_as_it_was_written() -> None:
    near = parse_nearby(SAID, ["192.168.1.5", "fd00::5", "192.168.1.5"], 7420, run_id="run-1", loopback=False)
    assert near == Nearby(PEER_ID, "origin", ("192.168.1.5:7420", "[fd00::5]:7420"))


def test_an_announcement_has_a_hash_of_the_run_and_not_its_name() -> None:
    assert "run-1" not in "".join(properties_of(PEER_ID, "peer", "run-1").values())
    assert run_mark("run-1") != run_mark("run-2")
    assert parse_nearby(SAID, ["192.168.1.5"], 7420, run_id="run-2", loopback=False) is None


def test_a_service_name_has_room_for_a_peer_id() -> None:
    assert len(instance_name(PEER_ID).split(".")[0]) <= 63


@pytest.mark.parametrize("address", ["8.8.8.8", "127.0.0.1", "fe80::1", "224.0.0.251", "0.0.0.0", "nonsense", ""])
def test_addresses_outside_local_networks_are_ignored(address: str) -> None:
    assert parse_nearby(SAID, [address], 7420, run_id="run-1", loopback=False) is None


@pytest.mark.parametrize(
    "change",
    [{b"v": b"2"}, {b"role": b"learner"}, {b"id": b"12D3KooW"}, {b"id": None}, {b"run": b""}, {b"id": b"x" * 70}],
)
def test_a_service_that_is_no_peer_is_ignored(change: dict[bytes, bytes | None]) -> None:
    assert parse_nearby({**SAID, **change}, ["10.0.0.1"], 7420, run_id="run-1", loopback=False) is None


@given(
    st.dictionaries(st.sampled_from([b"v", b"id", b"role", b"run"]), st.binary(max_size=80) | st.none()),
    st.lists(st.ip_addresses().map(str) | st.text(max_size=20), max_size=20),
    st.integers(-1, 1 << 17),
)
def test_any_announcement_gives_a_bounded_result(
    properties: dict[bytes, bytes | None], addresses: list[str], port: int
) -> None:
    near = parse_nearby({**SAID, **properties}, addresses, port, run_id="run-1", loopback=True)
    assert near is None or (1 <= len(near.addresses) <= 4 and 0 < port < 1 << 16)
