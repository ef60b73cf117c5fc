from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.events.actions import SendToPeer
from coordinator.core.events.events import PeerLeft, Tick
from coordinator.core.traversal import circuits
from coordinator.core.traversal.circuits import KEPT, NAMED_MOST, spread
from rollcast.wire.ids import PeerId
from tests.coordinator.core.traversal.world import ReachWorld
from tests.coordinator.core_world import only


def relay(here: ReachWorld, name: str) -> str:
    """Add a member that others can dial and that accepts reservations, and return its address."""
    here.join(name, address="{host}:4000 /ip4/{host}/tcp/4001")
    address = f"/ip4/{here.reach(name).host}/tcp/4001/p2p/{name}"
    here.say(name, "mapped", relay_address=address)
    return address


def named(here: ReachWorld) -> dict[str, list[str]]:
    """Return the relays that each member is sent at the next tick."""
    here.now += 20.0
    messages = {one.peer_id: one.message for one in only(here.handle(Tick()), SendToPeer)}
    return {
        peer_id: list(message.circuit_relays.addresses)
        for peer_id, message in messages.items()
        if message.WhichOneof("body") == "circuit_relays"
    }


def test_a_member_that_cannot_be_dialled_is_assigned_relays_once() -> None:
    here = ReachWorld()
    here.say("a", "symmetric")
    assert named(here) == {}, "there are none"
    address = relay(here, "r")
    assert named(here) == {"a": [address]}
    assert named(here) == {}
    here.say("b", "port-restricted")
    assert named(here) == {"b": [address]}


def test_another_relay_takes_the_place_of_one_that_left() -> None:
    here = ReachWorld()
    first = relay(here, "r1")
    here.say("a", "symmetric")
    assert named(here) == {"a": [first]}
    second = relay(here, "r2")
    assert named(here) == {"a": [first, second]}
    here.handle(PeerLeft(PeerId("r1"), "it went"))
    assert named(here) == {"a": [second]}
    here.handle(PeerLeft(PeerId("r2"), "it went"))
    assert named(here) == {"a": []}


def test_a_member_that_reconnects_is_sent_its_relays_again() -> None:
    here = ReachWorld()
    address = relay(here, "r")
    here.say("a", "symmetric")
    assert named(here) == {"a": [address]}
    here.handle(PeerLeft(PeerId("a"), "it went"))
    here.join("a")
    assert named(here) == {"a": [address]}


def test_a_relay_at_a_third_partys_address_is_ignored() -> None:
    here = ReachWorld()
    here.say("a", "symmetric")
    here.join("r", address="203.0.113.7:4000")
    own = here.reach("r").host
    for address in (
        "/ip4/192.0.2.99/tcp/4001/p2p/r",
        "/ip4/203.0.113.7/tcp/4001/p2p/r",
        f"/ip4/{own}/tcp/4001/p2p/a",
        f"/ip4/{own}/tcp/4001",
        f"/ip4/{own}/udp/4001/p2p/r",
    ):
        here.say("r", "mapped", relay_address=address)
        assert named(here) == {}


def test_a_relay_may_be_at_an_address_where_others_reached_it() -> None:
    here = ReachWorld()
    here.say("a", "symmetric")
    here.join("r", address="203.0.113.7:4000")
    address = "/ip4/203.0.113.7/tcp/4001/p2p/r"
    here.say("r", "mapped", relay_address=address)
    assert named(here) == {}, "no member has dialled it there"
    here.core.state.reach.found(PeerId("r"), dialable=True, address="203.0.113.7:4000")
    assert named(here) == {"a": [address]}


def test_frequent_reports_neither_multiply_nor_prevent_assignments(monkeypatch: pytest.MonkeyPatch) -> None:
    here, looks = ReachWorld(), 0

    def counted(*given: Any) -> dict[PeerId, tuple[str, ...]]:
        nonlocal looks
        looks += 1
        return spread(*given)

    monkeypatch.setattr(circuits, "spread", counted)
    for _ in range(100):
        here.now += 0.1
        here.say("a", "symmetric")
        here.handle(Tick())
    assert 5 <= looks <= 11


def test_only_circuits_through_a_known_relay_to_the_reporting_member_are_accepted() -> None:
    here = ReachWorld()
    address = relay(here, "r")
    circuits = (
        f"{address}/p2p-circuit/p2p/a",
        f"{address}/p2p-circuit/p2p/b",
        "/ip4/192.0.2.66/tcp/22/p2p/r/p2p-circuit/p2p/a",
        f"{address}/p2p-circuit",
    )
    here.say("a", "symmetric", circuits=circuits)
    assert here.reach("a").circuits == circuits[:1]


@given(
    needing=st.integers(0, 40),
    relays=st.integers(0, 8),
    gone=st.sets(st.integers(0, 7)),
)
def test_relays_are_spread_and_stay_where_they_can(needing: int, relays: int, gone: set[int]) -> None:
    addresses = {PeerId(f"r{number}"): f"/r{number}" for number in range(relays)}
    members = [PeerId(f"m{number}") for number in range(needing)]
    before = spread(members, addresses, {})
    load = Counter(one for each in before.values() for one in each[:KEPT])
    if relays and needing:
        assert all(len(set(each)) == len(each) == min(NAMED_MOST, relays) for each in before.values())
        counts = [load[address] for address in addresses.values()]
        assert max(counts) - min(counts) <= 1
    left = {peer_id: one for peer_id, one in addresses.items() if int(peer_id[1:]) not in gone}
    after = spread(members, left, before)
    for peer_id in after:
        stayed = [one for one in before[peer_id] if one in left.values()]
        assert list(after[peer_id][: len(stayed)]) == stayed
        assert len(after[peer_id]) == min(NAMED_MOST, len(left))


def test_a_relay_that_needs_relays_is_not_assigned_itself() -> None:
    relays = {PeerId("r"): "/r", PeerId("s"): "/s"}
    assert spread([PeerId("r")], relays, {}) == {"r": ("/s",)}
    assert spread([PeerId("r")], {PeerId("r"): "/r"}, {}) == {}
