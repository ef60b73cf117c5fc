from __future__ import annotations

import math

import msgspec
import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.core.events.events import LinkFacts, SwapFacts
from coordinator.rpc.heartbeats import facts_of
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire import limits
from rollcast.wire.ids import PeerId, Version
from rollcast.wire.proto import rollcast_pb2 as pb

NUMBERS = st.one_of(st.floats(), st.just(math.nan), st.just(1e308))
COUNTS = st.integers(0, 2**64 - 1)


def test_heartbeat_of_a_receiving_peer() -> None:
    beat = pb.Heartbeat(
        state="receiving",
        has_active_version=True,
        active_version=6,
        receiving_version=7,
        receiving_encoding_id=3,
        receiving_chunks_have=5,
        receiving_chunks_total=8,
        receiving_map=b"\xff\x00",
        uplink_bytes_per_second=6e6,
        uplink_measured_s=2.5,
        uplink_age_s=40.0,
        downlink_bytes_per_second=12e6,
        chunks_duplicate=1,
        chunks_hedged=2,
        reparentings=3,
        delta_bytes_saved=4,
        uplink_probe_id=9,
        sending_stopped=True,
        p2p="running",
        swap=pb.SwapReport(version=6, kind="delta", paused_s=0.25, moved_bytes=30, read_back=True),
        engine_devices=8,
        engine_versions=1,
        links=[
            pb.LinkReport(
                peer_id="a",
                transport="direct",
                rtt_s=0.04,
                bytes_sent=10,
                bytes_received=20,
                congestion_control="bbr",
                lan=True,
            )
        ],
    )
    facts = facts_of(beat)
    assert (facts.active_version, facts.receiving_version, facts.receiving_encoding_id) == (6, 7, 3)
    assert (facts.receiving_chunks_have, facts.receiving_chunks_total, facts.receiving_map) == (5, 8, b"\xff\x00")
    assert (facts.uplink_bytes_per_second, facts.uplink_measured_s, facts.uplink_age_s) == (6e6, 2.5, 40.0)
    assert (facts.downlink_bytes_per_second, facts.uplink_probe_id) == (12e6, 9)
    assert (facts.sending_stopped, facts.receiving_stopped) == (True, False)
    assert (facts.chunks_duplicate, facts.chunks_hedged, facts.reparentings, facts.delta_bytes_saved) == (1, 2, 3, 4)
    assert facts.links == (LinkFacts(PeerId("a"), "direct", 0.04, 10, 20, 0.0, "bbr", lan=True),)
    assert facts.p2p == "running"
    assert facts.swap == SwapFacts(Version(6), "delta", 0.25, 30, read_back=True)
    assert (facts.engine_devices, facts.engine_versions) == (8, 1)


def test_nothing_is_received_without_chunks() -> None:
    facts = facts_of(pb.Heartbeat(state="idle", receiving_version=7, receiving_map=b"\xff"))
    assert (facts.receiving_version, facts.receiving_encoding_id, facts.receiving_map) == (None, None, b"")


@pytest.mark.parametrize(
    "beat",
    [
        pb.Heartbeat(links=[pb.LinkReport()] * (limits.LINK_REPORTS_MAX + 1)),
        pb.Heartbeat(receiving_map=bytes(limits.HEAT_MAP_CELLS_MAX + 1)),
        pb.Heartbeat(links=[pb.LinkReport(peer_id="x" * (limits.PEER_ID_LENGTH_MAX + 1))]),
        pb.Heartbeat(links=[pb.LinkReport(bytes_sent=limits.COUNTER_MAX + 1)]),
        pb.Heartbeat(reparentings=limits.COUNTER_MAX + 1),
        pb.Heartbeat(swap=pb.SwapReport(moved_bytes=limits.COUNTER_MAX + 1)),
    ],
)
def test_oversized_heartbeats_are_refused(beat: Message) -> None:
    with pytest.raises(MalformedMessage):
        facts_of(beat)  # type: ignore[arg-type]


def test_a_peer_cannot_hold_more_chunks_than_there_are() -> None:
    facts = facts_of(pb.Heartbeat(receiving_chunks_have=9, receiving_chunks_total=8))
    assert facts.receiving_chunks_have == 8


@settings(deadline=None, max_examples=60)
@given(rates=st.lists(NUMBERS, min_size=7, max_size=7), counts=st.lists(COUNTS, min_size=3, max_size=3), name=st.text())
def test_facts_are_always_finite_and_printable(rates: list[float], counts: list[int], name: str) -> None:
    beat = pb.Heartbeat(
        tokens_per_second=rates[0],
        uplink_bytes_per_second=rates[1],
        uplink_measured_s=rates[2],
        uplink_age_s=rates[3],
        downlink_bytes_per_second=rates[4],
        chunks_hedged=counts[0],
        links=[
            pb.LinkReport(
                peer_id=name, transport=name, rtt_s=rates[5], sent_bytes_per_second=rates[6], bytes_sent=counts[1]
            )
        ],
        reason=name,
    )
    try:
        facts = facts_of(beat)
    except MalformedMessage:
        assert len(name) > limits.PEER_ID_LENGTH_MAX or max(counts[:2]) > limits.COUNTER_MAX
        return
    (link,) = facts.links
    numbers = (
        *(facts.tokens_per_second, facts.uplink_bytes_per_second, facts.uplink_measured_s, facts.uplink_age_s),
        *(facts.downlink_bytes_per_second, link.rtt_s, link.sent_bytes_per_second),
    )
    assert all(0.0 <= number <= limits.RATE_MAX for number in numbers)
    assert all(one.isprintable() for one in (facts.reason, link.peer_id, link.transport))
    assert len(link.transport) <= 16
    assert msgspec.structs.replace(facts) == facts  # no NaN anywhere


def test_a_cell_without_workers_is_told_from_one_whose_workers_are_not_known() -> None:
    assert facts_of(pb.Heartbeat(cell_workers=0, cell_slots=4)).cell_workers == 0
    unknown = facts_of(pb.Heartbeat(cell_slots=4))
    assert (unknown.cell_workers, unknown.cell_slots) == (None, 4)
