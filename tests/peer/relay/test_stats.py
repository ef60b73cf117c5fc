"""Test the relay's figures, and its heat map of chunks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.config import LinkConfig
from peer.links.traffic import LinkTraffic
from peer.links.transport import Link, LinkMeasurement
from peer.relay.core.state.chunk_set import ChunkSet
from peer.relay.core.state.events import EncodingKnown, HaveReceived, LinkId, StoreFailed
from peer.relay.stats import RelayStats, VersionBytes, heat_map, stats_of
from rollcast.wire.limits import LINK_REPORTS_MAX
from rollcast.wire.proto import rollcast_pb2 as pb
from tests.peer.relay.relay_steps import CHUNK_BYTES, KEY, Steps, key_of, neighbour, plan

A, B = 1, 2


def stats(steps: Steps, links: list[Link] | None = None) -> RelayStats:
    return stats_of(steps.state, links or [], LinkTraffic(LinkConfig()), 77, steps.now)


def peer(chunks: int = 4) -> Steps:
    steps = Steps()
    steps.tell(plan(neighbour("a"), neighbour("b")))
    steps.up(A, "a")
    steps.up(B, "b")
    return steps


def link(name: str, sent: int, received: int) -> Link:
    measured = LinkMeasurement(0.25, 0, "cubic", 3e6)
    fields = {"peer_id": name, "transport": "direct", "lan": True, "bytes_sent": sent, "bytes_received": received}
    return cast(Link, SimpleNamespace(**fields, measure=lambda: measured))


def test_bytes_are_counted_of_the_newest_versions() -> None:
    counted = VersionBytes()
    for version in range(100):
        counted.add(version, 3)
    counted.add(99, 4)
    assert (counted.of(99), counted.of(98), counted.of(1)) == (7, 3, 0)


def test_an_idle_relay_waits_for_nothing() -> None:
    idle = stats(Steps())
    assert (idle.receiving, idle.have, idle.total, idle.waiting_for, idle.store_failure) == (None, 0, 0, "", "")
    assert idle.report == pb.Heartbeat(chunk_bytes_sent=77)


def test_the_version_in_progress_is_reported_with_what_it_waits_for() -> None:
    steps = peer()
    steps.tell(EncodingKnown(KEY, 4, CHUNK_BYTES))
    assert stats(steps).waiting_for == "the chunk list of version 1"
    steps.state.encodings.clear()
    steps.receive(4)
    assert stats(steps).waiting_for == "late chunks of version 1 from a, b"
    steps.tell(HaveReceived(LinkId(A), KEY, 4, b"", True))
    steps.chunk(A, 0)
    now = stats(steps)
    assert (now.receiving, now.have, now.total) == (1, 1, 4)
    assert now.report == pb.Heartbeat(
        chunk_bytes_sent=77,
        chunk_bytes_from_peers=CHUNK_BYTES,
        receiving_version=1,
        receiving_chunks_have=1,
        receiving_chunks_total=4,
        receiving_map=b"\xff\x00\x00\x00",
    )


def test_pushed_chunks_are_waited_for_without_naming_peers() -> None:
    steps = peer()
    steps.tell(plan(neighbour("a"), neighbour("b"), parents=("a",), plan_id=2))
    steps.receive(4)
    assert stats(steps).waiting_for == "chunks of version 1"


def test_a_link_that_is_dialled_is_named() -> None:
    steps = Steps()
    steps.tell(plan(fallbacks=(neighbour("far", we_dial=True),)))
    steps.receive(4)
    assert stats(steps).waiting_for == "a link to far for version 1"


def test_only_announced_versions_count_and_the_newest_first() -> None:
    steps = peer()
    steps.receive(4, key_of(1))
    steps.receive(4, key_of(2, 3))
    steps.receive(4, key_of(3), announced=False)
    now = stats(steps)
    assert now.receiving == 2
    assert now.report.receiving_encoding_id == 3


def test_a_store_failure_is_reported_until_a_version_is_stored() -> None:
    steps = peer()
    steps.receive(4)
    steps.tell(StoreFailed(KEY, "disk full"))
    assert stats(steps).store_failure == "cannot store version 1: disk full"


def test_only_the_busiest_links_are_reported() -> None:
    links = [link(f"peer-{number}", number, 1000 if number == 3 else 0) for number in range(LINK_REPORTS_MAX + 9)]
    reports = stats(Steps(), links).report.links
    assert len(reports) == LINK_REPORTS_MAX
    assert [reports[0].peer_id, reports[1].peer_id] == ["peer-3", f"peer-{LINK_REPORTS_MAX + 8}"]
    assert reports[0].rtt_s == pytest.approx(0.25)
    assert (reports[0].bytes_sent, reports[0].bytes_received, reports[0].congestion_control) == (3, 1000, "cubic")


@pytest.mark.parametrize(
    ("chunks", "held", "cells", "drawn"),
    [
        (8, range(8), 4, [255, 255, 255, 255]),
        (8, [0, 1, 2, 7], 4, [255, 127, 0, 127]),
        (3, [1], 128, [0, 255, 0]),
        (10, [9], 3, [0, 0, 63]),  # runs of 3, 3 and 4 chunks
        (1000, [0], 1, [1]),
        (1000, range(999), 1, [254]),
    ],
)
def test_a_cell_is_the_share_of_its_chunks(chunks: int, held: list[int], cells: int, drawn: list[int]) -> None:
    assert list(heat_map(ChunkSet(chunks, held).bitmap, chunks, cells)) == drawn


def test_nothing_to_receive_is_no_map() -> None:
    assert heat_map(b"", 0) == b""


@settings(deadline=None, max_examples=60)
@given(st.sets(st.integers(0, 1999)), st.integers(1, 2000), st.integers(1, 200))
def test_only_what_is_held_is_full_and_only_what_is_missing_is_empty(held: set[int], chunks: int, cells: int) -> None:
    held = {index for index in held if index < chunks}
    drawn = heat_map(ChunkSet(chunks, held).bitmap, chunks, cells)
    assert len(drawn) == min(cells, chunks)
    bounds = [cell * chunks // len(drawn) for cell in range(len(drawn) + 1)]
    for cell, share in enumerate(drawn):
        run = set(range(bounds[cell], bounds[cell + 1]))
        assert (share == 255, share == 0) == (run <= held, not run & held)
