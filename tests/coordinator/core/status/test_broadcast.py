"""The status of broadcasts, and of the hops that a version took."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from coordinator.core.decisions.state import CoreState
from coordinator.core.events.events import (
    AnnouncedEncoding,
    LinkFacts,
    PeerLeft,
    RunEnded,
    VersionAnnounced,
    VersionHeld,
)
from coordinator.core.status import broadcast, hops
from coordinator.core.status.broadcast import BroadcastStatus, EncodingStatus, PeerCounts, build_broadcast_status
from coordinator.core.status.hops import HOPS_SHOWN_MAX, Hop, HopRates, find_hops
from coordinator.core.status.turns import at_once, slices
from rollcast.wire.ids import EncodingId, Epoch, PeerId, Version
from tests.coordinator.core_world import World, announced, heartbeat, held, joined, settings
from tests.coordinator.sample_status import sample_broadcast

KEYFRAME = AnnouncedEncoding(EncodingId(0), "keyframe", None, 1000)

DELTA = AnnouncedEncoding(EncodingId(1), "delta", Version(0), 20)


def receiving(name: str, version: int, have: int, total: int, **changes: Any) -> Any:
    values = {"receiving_version": Version(version), "receiving_chunks_have": have, "receiving_chunks_total": total}
    return heartbeat(name, state="receiving", **{"receiving_encoding_id": EncodingId(1), **values, **changes})


def half_way() -> World:
    """Return a world 2 s after version 1 was announced: a holds it, b half of its delta, c nothing."""
    world = World()
    world.start("a", "b", "c")
    world.now = 10.0
    world.handle(VersionAnnounced(Epoch(0), Version(1), 16, (KEYFRAME, DELTA)))
    world.now = 11.0
    world.handle(VersionHeld(PeerId("a"), Epoch(0), Version(1), 30))
    world.now = 12.0
    uplink = {"uplink_bytes_per_second": 5e6, "uplink_age_s": 3.0}
    world.handle(receiving("b", 1, 2, 4, receiving_map=b"\xff\xff\x00\x00", **uplink))
    world.handle(heartbeat("c"))
    return world


def status(world: World) -> BroadcastStatus:
    return at_once(world.core.broadcast(world.now))


def test_the_members_of_a_large_fleet_are_read_some_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    world = half_way()  # an origin and three peers
    found = status(world)
    turns = len(list(world.core.broadcast(world.now)))
    monkeypatch.setattr(broadcast, "PEERS_SHOWN_MAX", 2)
    few = status(world)
    monkeypatch.setattr(broadcast, "slices", partial(slices, size=1))
    # Once for their links, and once to choose those that are listed.
    assert len(list(world.core.broadcast(world.now))) == turns + 2 * 3
    assert status(world) == few
    monkeypatch.setattr(broadcast, "PEERS_SHOWN_MAX", 4)
    assert status(world) == found


def test_a_broadcast_half_way() -> None:
    found = status(half_way())
    assert (found.version, found.running, found.started_s_ago) == (1, True, 2.0)
    assert found.peers_holding == PeerCounts(1, 3)
    assert found.encoding == EncodingStatus(1, "delta", 0, 20, receiving=1)
    assert found.bytes_per_peer == 30.0
    assert found.heat_map == "aaaa5555"  # a all, b the first half, c nothing
    assert found.waiting_for == "c, which has received nothing of version 1 yet, and 1 more peer"
    assert [(one.name, one.share_held, one.heat_map, one.t_last_s) for one in found.peers] == [
        ("origin", 0.0, "", None),
        ("c", 0.0, "", 0.0),
        ("b", 0.5, "ffff0000", 0.0),
        ("a", 1.0, "", 1.0),
    ]
    b = found.peers[2]
    assert (b.encoding_id, b.uplink_bytes_per_s, b.uplink_age_s, b.downlink_bytes_per_s) == (1, 5e6, 3.0, None)


def test_the_pace_so_far_predicts_how_long_the_rest_takes() -> None:
    world = half_way()
    world.handle(PeerLeft(PeerId("c"), "gone"))
    assert status(world).waiting_for == "b, which holds 50% of version 1, about 2 s from the end at its pace so far"
    world.now = 15.0
    waiting = status(world)
    assert waiting.waiting_for == "b, which has been silent for 3 s"
    assert waiting.next == "it counts as lost after 5 s of silence"


def test_a_full_set_of_chunks_is_not_yet_a_verified_copy() -> None:
    world = half_way()
    world.handle(receiving("b", 1, 4, 4))
    assert next(one.share_held for one in status(world).peers if one.name == "b") == 0.999


def test_a_finished_broadcast_waits_for_nothing() -> None:
    world = half_way()
    for name in "bc":
        world.handle(held(name, 1))
    found = status(world)
    assert (found.running, found.waiting_for, found.next) == (False, "", "the learner publishes the next version")
    assert (found.t_bcast_s.last, found.t_bcast_s.p95) == (2.0, 2.0)
    assert found.peers_holding == PeerCounts(3, 3)
    assert found.heat_map == "ff" * 128
    assert {one.name: (one.t_last_s, one.times_last) for one in found.peers if one.role == "peer"} == {
        "a": (1.0, 0),
        "b": (2.0, 0),
        "c": (2.0, 2),  # version 0 at once, after the others
    }
    assert found.t_peer_s.at_most[-1] == 6
    assert not any(one.heat_map for one in found.peers)


def test_before_a_version_without_peers_and_after_the_end() -> None:
    world = World()
    assert status(world).waiting_for == "the learner to announce its first version"
    world.handle(announced(0))
    assert status(world).waiting_for == "a peer to join"
    world.handle(joined("a"))
    assert status(world).waiting_for == "an origin to join: no connected member holds version 0"
    assert status(world).running
    world.handle(RunEnded("stopped", False))
    assert (status(world).waiting_for, status(world).running) == ("", False)


def test_a_version_that_an_earlier_coordinator_announced_has_no_beginning() -> None:
    state = CoreState(settings())
    state.newest_version = Version(7)
    found = at_once(build_broadcast_status(state, now=5.0))
    assert (found.version, found.started_s_ago, found.encodings, found.encoding) == (7, None, (), None)


def test_totals_and_the_plan() -> None:
    world = half_way()
    changes = {"chunk_bytes_from_origin": 100, "chunk_bytes_from_peers": 300, "chunks_duplicate": 2, "reparentings": 1}
    world.handle(heartbeat("a", active=1, **changes))
    world.handle(heartbeat("origin", chunk_bytes_from_peers=10**9))  # from the learner
    before = status(world).plan
    assert (before.mode, before.stripes) == ("mesh", world.core._state.relay.stripe_count)
    world.handle(joined("d"))
    found, totals = status(world), status(world).totals
    assert (totals.bytes_from_origin, totals.bytes_from_peers, totals.origin_share) == (100, 300, 0.25)
    assert (totals.chunks_duplicate, totals.reparentings) == (2, 1)
    assert before.replans == 0
    assert (found.plan.made - before.made, found.plan.replans) == (1, 1)


def test_maps_of_different_lengths_are_added_up() -> None:
    world = half_way()
    world.handle(receiving("c", 1, 1, 2, receiving_map=b"\x00\xff"))
    assert status(world).heat_map == "aaaaaaaa"  # a all, b the first half, c the second


def test_the_status_is_json_with_the_keys_that_screens_read() -> None:
    found, sample = json.loads(json.dumps(status(half_way()).to_json())), sample_broadcast()
    assert found.keys() >= sample.keys()
    assert found["peers"][0].keys() >= sample["peers"][0].keys()
    for part in ("totals", "plan", "t_bcast_s", "hop_rates", "encoding"):
        assert found[part].keys() >= sample[part].keys()


def test_large_fleets_are_summed_up_and_only_some_listed() -> None:
    state = CoreState(settings())
    state.newest_version = Version(1)
    links = tuple(LinkFacts(PeerId(f"p{number}"), "direct", 0.04, 9, 9, 1e6, "bbr") for number in range(8))
    for number in range(1000):
        member = state.members.join(joined(f"p{number}"), 0.0)
        member.facts = receiving(f"p{number}", 1, number % 100, 100, receiving_map=bytes(128), links=links).facts
    found = at_once(build_broadcast_status(state, now=1.0))
    assert found.peers_holding == PeerCounts(0, 1000)
    assert (len(found.peers), found.peers_left_out) == (broadcast.PEERS_SHOWN_MAX, 1000 - len(found.peers))
    assert len(found.hops) == hops.HOPS_SHOWN_MAX
    assert max(one.share_held for one in found.peers) <= 0.52  # those furthest behind


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


def listed_hops(state: CoreState) -> list[Hop]:
    return list(find_hops(state, list(state.members)).listed)


def test_a_hop_is_what_its_sending_end_reports() -> None:
    state = members(
        a=[
            link(
                "b",
                bytes_sent=10,
                bytes_received=7,
                sent_bytes_per_second=5e6,
                lost_share=0.01,
                window_limited_share=0.2,
            ),
            link("c"),
        ],
        b=[link("a", bytes_sent=7, bytes_received=10, rtt_s=0.0)],
    )
    assert listed_hops(state) == [
        Hop("a", "a", "b", "b", 5e6, 0.04, 10, "direct", "bbr", 0.01, 0.2),
        Hop("b", "b", "a", "a", None, None, 7, "direct", "bbr", 0.0, 0.0),
    ]


def test_links_of_a_sender_that_does_not_report_are_measured_by_the_receiver() -> None:
    state = members(
        a=[
            link("https-mirror", transport="mirror", bytes_received=9, congestion_control=""),
            link("12D3KooWLearner1", bytes_received=3),
            link("12D3KooWStranger", bytes_received=2),
            link("12D3KooWGone", bytes_received=1),
        ]
    )
    state.settings = replace(state.settings, learner_peer_id=PeerId("12D3KooWLearner1"))
    state.members.reputation(PeerId("12D3KooWGone")).name = "gone"
    found = listed_hops(state)
    assert [(hop.from_name, hop.to_name, hop.bytes_per_s, hop.bytes, hop.congestion_control) for hop in found] == [
        ("mirror", "a", None, 9, ""),
        ("learner", "a", None, 3, ""),
        ("…Stranger", "a", None, 2, ""),
        ("gone", "a", None, 1, ""),
    ]


def test_a_link_to_oneself_is_none() -> None:
    assert listed_hops(members(a=[link("a", bytes_sent=1)])) == []


def test_the_slowest_measured_hop_comes_first_and_the_busiest_unmeasured_one_after_them() -> None:
    state = members(
        a=[
            link("w", bytes_sent=1),
            link("x", bytes_sent=2),
            link("y", bytes_sent=3, sent_bytes_per_second=9e6),
            link("z", bytes_sent=4, sent_bytes_per_second=1e6, congestion_control="cubic"),
        ]
    )
    found = find_hops(state, state.members)
    assert [hop.to_peer_id for hop in found.listed] == ["z", "y", "x", "w"]
    assert found.rates == HopRates(2, 1e6, 1e6, 9e6, {"bbr": 1, "cubic": 1})
    assert find_hops(state, []).rates == HopRates(0, None, None, None)


def test_only_so_many_are_listed_and_all_are_counted() -> None:
    many = [link(f"p{number}", bytes_sent=1, sent_bytes_per_second=1.0 + number) for number in range(300)]
    found = find_hops(members(a=many), members(a=many).members)
    assert (len(found.listed), found.left_out) == (HOPS_SHOWN_MAX, 300 - HOPS_SHOWN_MAX)
    assert (found.rates.measured, found.listed[0].bytes_per_s) == (300, 1.0)
