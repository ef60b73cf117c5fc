from __future__ import annotations

from typing import Any

from coordinator.core.decisions.state import CoreState
from coordinator.core.events.events import LinkFacts
from coordinator.core.status.hops import HOPS_SHOWN_MAX, Hop, HopRates, find_hops
from rollcast.wire.ids import PeerId
from tests.coordinator.core_world import heartbeat, joined, settings


def link(peer: str, **changes: Any) -> LinkFacts:
    values: dict[str, Any] = {
        "transport": "direct",
        "rtt_s": 0.04,
        "bytes_sent": 0,
        "bytes_received": 0,
        "sent_bytes_per_second": 0.0,
        "congestion_control": "bbr",
    }
    return LinkFacts(peer_id=PeerId(peer), **(values | changes))


def members(**links: list[LinkFacts]) -> CoreState:
    state = CoreState(settings())
    for name, reported in links.items():
        member = state.members.join(joined(name), 0.0)
        member.facts = heartbeat(name, links=tuple(reported)).facts
    return state


def hops(state: CoreState) -> list[Hop]:
    return list(find_hops(state, list(state.members)).listed)


def test_a_hop_is_what_its_sending_end_reports() -> None:
    state = members(
        a=[link("b", bytes_sent=10, bytes_received=7, sent_bytes_per_second=5e6), link("c")],
        b=[link("a", bytes_sent=7, bytes_received=10, rtt_s=0.0)],
    )
    assert hops(state) == [
        Hop("a", "a", "b", "b", 5e6, 0.04, 10, "direct", "bbr"),
        Hop("b", "b", "a", "a", None, None, 7, "direct", "bbr"),
    ]


def test_what_does_not_report_is_seen_from_its_receiver() -> None:
    state = members(
        a=[
            link("https-mirror", transport="mirror", bytes_received=9, congestion_control=""),
            link("12D3KooWLearner1", bytes_received=3),
        ]
    )
    found = hops(state)
    assert [(hop.from_name, hop.to_name, hop.bytes_per_s, hop.bytes, hop.congestion_control) for hop in found] == [
        ("mirror", "a", None, 9, ""),
        ("…Learner1", "a", None, 3, ""),
    ]


def test_a_link_to_oneself_is_none() -> None:
    assert hops(members(a=[link("a", bytes_sent=1)])) == []


def test_the_slowest_measured_hop_comes_first_and_the_busiest_unmeasured_one_after_them() -> None:
    state = members(
        a=[
            link("w", bytes_sent=1),
            link("x", bytes_sent=2),
            link("y", bytes_sent=3, sent_bytes_per_second=9e6),
            link("z", bytes_sent=4, sent_bytes_per_second=1e6),
        ]
    )
    found = find_hops(state, state.members)
    assert [hop.to_peer_id for hop in found.listed] == ["z", "y", "x", "w"]
    assert found.rates == HopRates(2, 1e6, 1e6, 9e6)
    assert find_hops(state, []).rates == HopRates(0, None, None, None)


def test_only_so_many_are_listed_and_all_are_counted() -> None:
    many = [link(f"p{number}", bytes_sent=1, sent_bytes_per_second=1.0 + number) for number in range(300)]
    found = find_hops(members(a=many), members(a=many).members)
    assert (len(found.listed), found.left_out) == (HOPS_SHOWN_MAX, 300 - HOPS_SHOWN_MAX)
    assert (found.rates.measured, found.listed[0].bytes_per_s) == (300, 1.0)
