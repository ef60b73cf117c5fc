"""Test sets of chunks, and the window of those that are in flight."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.relay.core.state.chunk_set import ChunkSet
from peer.relay.core.state.window import ServiceWindow, UplinkPace


def work(window: ServiceWindow, chunks: int, per_chunk_s: float, round_trip_s: float, now: float = 0.0) -> float:
    """Keep the window full of one server's work until it has done so many chunks.

    The server does one chunk after the other, ``per_chunk_s`` each; news of it takes the round trip. Returns the time.
    """
    free_s, given, done = now, deque[tuple[float, float]](), 0
    while done < chunks:
        while len(given) < window.chunks:
            free_s = max(free_s, now) + per_chunk_s
            given.append((now, free_s + round_trip_s))
        given_s, now = given[0]
        window.observe(now - given_s, len(given))
        given.popleft()
        done += 1
    return now


def test_a_window_begins_with_its_first_size() -> None:
    window = ServiceWindow(4.0)
    assert (window.chunks, window.service_s, window.late_after_s) == (4, 0.0, 0.0)


@pytest.mark.parametrize("per_chunk_s", [0.002, 0.01, 0.05])
@pytest.mark.parametrize("round_trip_s", [0.0, 0.01, 0.05, 0.1])
@pytest.mark.parametrize("first", [1.0, 4.0])
def test_a_window_keeps_a_server_busy_and_hardly_more(per_chunk_s: float, round_trip_s: float, first: float) -> None:
    window = ServiceWindow(first)
    busy = (round_trip_s + per_chunk_s) / per_chunk_s
    work(window, 1500, per_chunk_s, round_trip_s)
    assert busy + 1.0 <= window.size <= busy + 3.5


@pytest.mark.parametrize("round_trip_s", [0.0, 0.01, 0.05])
def test_a_window_that_begins_too_large_shrinks(round_trip_s: float) -> None:
    window = ServiceWindow(32.0)
    work(window, 200, 0.01, round_trip_s)
    assert window.size <= round_trip_s / 0.01 + 1.0 + 3.5


def test_a_window_keeps_its_least_size() -> None:
    window = ServiceWindow(32.0, least=32.0)
    work(window, 200, 0.01, 0.05)
    assert window.chunks == 32
    window.late(1.0)
    assert window.chunks == 32


def test_a_window_follows_a_server_that_slows_down() -> None:
    window = ServiceWindow(4.0)
    now = work(window, 1000, 0.002, 0.1)
    assert 52.0 <= window.size <= 54.5
    work(window, 300, 0.02, 0.1, now)
    assert window.size <= 9.5


def test_a_longer_route_is_learned_from_one_version_to_the_next() -> None:
    window, now = ServiceWindow(4.0), 0.0
    for version in range(16):
        window.begin()
        now = work(window, 300, 0.002, 0.01 if version < 2 else 0.1, now)
    assert window.size >= 40.0


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.floats(0.0, 1e9), st.integers(0, 1 << 20)), max_size=60), st.floats(1.0, 4096.0))
def test_a_window_stays_within_bounds(observed: list[tuple[float, int]], first: float) -> None:
    window = ServiceWindow(first)
    for service_s, held in observed:
        window.observe(service_s, held)
        assert 1 <= window.chunks <= 4096
        assert 0.0 <= window.service_s <= window.late_after_s


def test_an_unused_window_does_not_grow() -> None:
    window = ServiceWindow(4.0)
    for _ in range(100):
        window.observe(0.1, 2)
    assert window.chunks == 4


def test_after_a_timeout_a_window_begins_again_with_one() -> None:
    window = ServiceWindow(4.0)
    window.late(0.5)
    assert (window.chunks, window.late_after_s) == (1, 0.5), "the same patience the next time"
    work(window, 200, 0.01, 0.05)
    assert window.size >= 6.0


def test_a_chunk_is_late_only_after_several_times_the_usual() -> None:
    window = ServiceWindow(4.0)
    window.observe(0.1, 1)
    assert window.late_after_s == pytest.approx(0.4)


SIZES = st.integers(1, 70)


@settings(deadline=None, max_examples=50)
@given(size=SIZES, data=st.data())
def test_a_chunk_set_survives_the_wire(size: int, data: st.DataObject) -> None:
    indices = data.draw(st.sets(st.integers(0, size - 1)))
    chunks = ChunkSet(size, indices)
    assert set(chunks) == indices
    assert chunks.count == len(indices)
    assert chunks.complete == (len(indices) == size)
    again = ChunkSet.from_bitmap(size, chunks.bitmap)
    assert again is not None
    assert set(again) == indices
    assert again.count == len(indices)
    other = data.draw(st.sets(st.integers(0, size - 1)))
    assert chunks.covers(ChunkSet(size, other)) == (other <= indices)


@settings(deadline=None, max_examples=50)
@given(size=SIZES, bitmap=st.binary(max_size=12))
def test_hostile_bitmaps_never_name_chunks_beyond_the_last(size: int, bitmap: bytes) -> None:
    chunks = ChunkSet.from_bitmap(size, bitmap)
    assert chunks is None or (chunks.bitmap == bitmap and chunks.count == len(set(chunks)))


def test_bits_are_most_significant_first() -> None:
    assert ChunkSet(10, [0, 9]).bitmap == b"\x80\x40"
    assert ChunkSet.full(10).bitmap == b"\xff\xc0"


def test_an_index_counts_once_and_must_exist() -> None:
    chunks = ChunkSet(2)
    assert chunks.add(1)
    assert not chunks.add(1)
    assert -1 not in chunks
    for index in (-1, 2):
        with pytest.raises(IndexError):
            chunks.add(index)


@pytest.mark.parametrize("size", [1, 7, 8, 9, 70])
def test_the_full_set_has_every_index_and_no_other(size: int) -> None:
    full = ChunkSet.full(size)
    assert full.complete
    assert full.bitmap == ChunkSet(size, range(size)).bitmap


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 40), st.data())
def test_bits_name_the_same_indices_as_sets(size: int, data: st.DataObject) -> None:
    here = data.draw(st.sets(st.integers(0, size - 1)))
    others = data.draw(st.sets(st.integers(0, size - 1)))
    below = data.draw(st.integers(0, size + 9))
    chunks = ChunkSet(size, here)
    assert chunks.bits_of(here) == chunks.as_int()
    assert chunks.first_of(chunks.bits_of(others), size) == sorted(others)
    start = data.draw(st.integers(0, size - 1))
    assert chunks.first_of(chunks.bits_of(others), size, start) == sorted(others, key=lambda one: (one < start, one))
    missing = [index for index in range(min(below, size)) if index not in here]
    assert chunks.first_of(chunks.missing_below(below), size) == missing


def test_the_pace_of_an_uplink_leaves_out_the_time_without_chunks() -> None:
    pace = UplinkPace()
    pace.given(1000)
    for start in (0.0, 100.0, 1000.0):
        pace.begins(start)
        for number in range(1, 4):
            pace.left(1000, start, start + 0.5 * number)
    assert pace.chunk_s == pytest.approx(0.5)


def test_an_uplink_from_which_nothing_leaves_is_as_slow_as_that_shows() -> None:
    pace = UplinkPace()
    pace.given(1000)
    pace.begins(0.0)
    pace.left(1000, 0.0, 0.5)
    assert pace.chunk_s_at_least(0.0, 0.7) == pytest.approx(0.5)
    assert pace.chunk_s_at_least(0.0, 2.0) == pytest.approx(1.5)
    assert pace.chunk_s_at_least(1.9, 2.0) == pytest.approx(0.5), "the chunk has only just been given to it"


def leaves(pace: UplinkPace, count: int, began_s: float, *, every_s: float, transit_s: float) -> float:
    """Have chunks of one size leave at equal distances after a time; returns when the last one has left."""
    for number in range(1, count + 1):
        now = began_s + number * every_s
        pace.left(1000, now - transit_s, now)
    return now


def test_an_uplink_that_collapses_is_known_to_be_slow_after_two_chunks() -> None:
    pace = UplinkPace()
    pace.given(1000)
    pace.begins(0.0)
    now = leaves(pace, 20, 0.0, every_s=0.005, transit_s=0.005)
    now = leaves(pace, 2, now, every_s=0.05, transit_s=0.005)
    assert pace.chunk_s >= 0.025
    leaves(pace, 40, now, every_s=0.005, transit_s=0.005)
    assert pace.chunk_s <= 0.006


def test_chunks_of_another_size_are_expected_to_take_as_long_for_each_byte() -> None:
    """A delta's chunks are small: those of the keyframe that comes after it take a hundred times as long."""
    pace = UplinkPace()
    pace.given(8_000)
    pace.begins(0.0)
    pace.left(8_000, 0.0, 0.001)
    pace.left(8_000, 0.0, 0.002)
    pace.given(1_000_000)
    assert pace.chunk_s == pytest.approx(0.125)
    assert pace.transit_s == pytest.approx(0.15)
    pace.left(8_000, 0.0, 0.003)  # the last small one leaves after that
    assert pace.chunk_s == pytest.approx(0.125)
    pace.left(1_000_000, 0.003, 0.153)
    assert pace.chunk_s == pytest.approx(0.1275)


def test_a_chunk_that_waits_for_the_other_end_does_not_make_all_others_seem_slow() -> None:
    pace = UplinkPace()
    pace.given(1000)
    pace.begins(0.0)
    now = leaves(pace, 20, 0.0, every_s=0.1, transit_s=0.3)
    pace.left(1000, now - 60.0, now)
    assert pace.transit_s <= 0.6
    leaves(pace, 20, now, every_s=0.1, transit_s=0.3)
    assert pace.transit_s == pytest.approx(0.3, rel=0.05)
