from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.limits import DELTA_BLOCK_BYTES
from rollcast.wire.versions.delta_blocks import (
    DENSE,
    RECORD_HEADER,
    SPARSE,
    UNCHANGED,
    WHOLE,
    BlockDecoder,
    BlockEncoder,
    Items,
    payload_bytes_max,
)

ITEM_SIZES = (1, 2, 4, 8)


def items(size: int, values: Any) -> Items:
    return np.array(values, np.dtype(f"<u{size}"))


def record(old: Items, new: Items) -> tuple[int, bytes]:
    data = BlockEncoder().encode(old, new)
    kind, length = RECORD_HEADER.unpack_from(data)
    assert len(data) == RECORD_HEADER.size + length
    return kind, data[RECORD_HEADER.size :]


def apply(kind: int, payload: bytes, old: Items) -> Items:
    result = old.copy()
    BlockDecoder().apply(kind, memoryview(payload), result)
    return result


def sparse(count: int, *streams: bytes, gap_count: int | None = None, stored: list[int] | None = None) -> bytes:
    """Build a payload by hand: gaps, low bits, signs, flags, magnitudes, wide differences."""
    lengths = stored or [len(stream) for stream in streams]
    gaps = len(streams[0]) if gap_count is None else gap_count
    return struct.pack("<II6I", count, gaps, *lengths) + b"".join(streams)


# ---------------------------------------------------------------- forms


@pytest.mark.parametrize("size", ITEM_SIZES)
def test_each_way_to_change_has_its_form(size: int) -> None:
    rng = np.random.default_rng(size)
    old = items(size, rng.integers(0, 200, 5000))
    few, all_near, unlike = old.copy(), old + old.dtype.type(1), items(size, np.zeros(5000))
    few[[7, 300, 4999]] += old.dtype.type(1)
    for new, expected in ((old, UNCHANGED), (few, SPARSE), (all_near, DENSE), (unlike, WHOLE)):
        kind, payload = record(old, new)
        assert kind == expected
        assert (apply(kind, payload, old) == new).all()


@pytest.mark.parametrize("size", ITEM_SIZES)
@pytest.mark.parametrize("count", [1, 7, 8, 63, 64, 65, 1000, 4099])
def test_single_changes_are_found_wherever_they_are(size: int, count: int) -> None:
    old, encoder = items(size, np.arange(count) % 200), BlockEncoder()
    for place in {0, count // 2, max(0, count - 8), count - 1}:
        new = old.copy()
        new[place] += old.dtype.type(1)
        data = encoder.encode(old, new)  # one encoder: nothing is left of the block before
        kind, _ = RECORD_HEADER.unpack_from(data)
        assert (apply(kind, data[RECORD_HEADER.size :], old) == new).all()
        assert RECORD_HEADER.unpack_from(encoder.encode(new, new)) == (UNCHANGED, 0)


@pytest.mark.parametrize("size", ITEM_SIZES)
def test_every_size_of_a_difference_comes_back(size: int) -> None:
    bits = 8 * size
    steps = {0, 1, 2, 3, 127, 128, 254, 255, 256, 257, 258, 2 ** (bits - 1) - 1, 2 ** (bits - 1), 2**bits - 1}
    differences = items(size, sorted({sign * step % 2**bits for step in steps for sign in (1, -1)}))
    old = items(size, np.random.default_rng(0).integers(0, 256, 20 * len(differences)))
    new = old.copy()
    new[::20] += differences
    kind, payload = record(old, new)
    assert kind == SPARSE
    assert (apply(kind, payload, old) == new).all()
    whole = np.resize(old, len(differences))
    kind, payload = record(whole, whole + differences)
    assert (apply(kind, payload, whole) == whole + differences).all()


@pytest.mark.parametrize(
    "places", [[0], [99_999], [0, 99_999], [254], [255], [256], [10, 266, 521], [0, 33_000, 98_000]]
)
def test_gaps_of_any_length(places: list[int]) -> None:
    old = items(2, np.zeros(100_000))
    new = old.copy()
    new[places] = 1
    kind, payload = record(old, new)
    assert kind == SPARSE
    assert (apply(kind, payload, old) == new).all()


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=60), st.integers(0, 3000))
@settings(deadline=None, max_examples=50)
def test_any_positions(distances: list[int], rest: int) -> None:
    places = np.cumsum(distances)
    old = items(1, np.zeros(int(places[-1]) + 1 + rest))
    new = old.copy()
    new[places] = 5
    assert (apply(*record(old, new), old) == new).all()


def test_a_misleading_sample_costs_no_more_than_the_whole() -> None:
    old = items(4, np.arange(200_000))
    new = np.random.default_rng(0).integers(0, 2**32, 200_000).astype("<u4")
    new[80_000:120_000] = old[80_000:120_000] + 1  # what the sample sees
    kind, payload = record(old, new)
    assert len(payload) <= payload_bytes_max(4, len(new))
    assert (apply(kind, payload, old) == new).all()


# ---------------------------------------------------------------- refusals

OLD = items(2, np.arange(500))
GAPS, BITS = b"\x05\x06\x07\x08", b"\0"
GOOD = sparse(4, GAPS, b"", BITS, BITS, b"", b"")
REFUSED = {
    "no header": (b"", "cut short"),
    "a header cut short": (GOOD[:20], "cut short"),
    "no changes": (sparse(0, b"", b"", b"", b"", b"", b""), "number of changes"),
    "too many changes": (sparse(251, bytes(251), b"", bytes(32), bytes(32), b"", b""), "number of changes"),
    "fewer gaps than changes": (sparse(4, GAPS[:3], b"", BITS, BITS, b"", b""), "number of gaps"),
    "more escapes than fit": (sparse(4, b"\xff\xff" + GAPS, b"", BITS, BITS, b"", b""), "number of gaps"),
    "too few ends of gaps": (sparse(4, b"\xff\1\2\3", b"", BITS, BITS, b"", b""), "number of gaps"),
    "an escape at the end": (sparse(4, GAPS + b"\xff", b"", BITS, BITS, b"", b""), "number of gaps"),
    "a position beyond": (sparse(4, b"\xfe\xf3\0\0", b"", BITS, BITS, b"", b""), "beyond the tensor"),
    "streams cut short": (GOOD[:-1], "length of a stream"),
    "bytes after the streams": (GOOD + b"\0", "continues after"),
    "a stream too long": (sparse(4, GAPS, b"", b"\0\0", BITS, b"", b""), "length of a stream"),
    "a short stream that is no zstd": (sparse(4, GAPS[:3], b"", BITS, BITS, b"", b"", gap_count=4), "decompressed"),
    "magnitudes not asked for": (sparse(4, GAPS, b"", BITS, BITS, b"\1", b""), "length of a stream"),
    "too few magnitudes": (sparse(4, GAPS, b"", BITS, b"\xc0", b"\1", b""), "decompressed"),
    "a missing wide difference": (sparse(4, GAPS, b"", BITS, b"\x80", b"\xff", b""), "decompressed"),
    "a length beyond everything": (
        sparse(4, GAPS, b"", BITS, BITS, b"", b"", stored=[4, 0, 1, 1, 2**32 - 1, 0]),
        "length of a stream",
    ),
}


def test_the_example_that_the_refused_ones_vary_is_good() -> None:
    new = apply(SPARSE, GOOD, OLD)
    assert np.flatnonzero(new != OLD).tolist() == [5, 12, 20, 29]


def test_the_last_item_can_change() -> None:
    payload = sparse(4, b"\xfe\xf2\0\0", b"", BITS, BITS, b"", b"")
    assert np.flatnonzero(apply(SPARSE, payload, OLD) != OLD).tolist() == [254, 497, 498, 499]


@pytest.mark.parametrize(("payload", "reason"), REFUSED.values(), ids=REFUSED)
def test_hostile_blocks_are_refused_and_change_nothing(payload: bytes, reason: str) -> None:
    target = OLD.copy()
    with pytest.raises(MalformedMessage, match=reason):
        BlockDecoder().apply(SPARSE, memoryview(payload), target)
    assert (target == OLD).all()


@pytest.mark.parametrize("kind", [UNCHANGED, 4, 255])
def test_unknown_kinds_are_refused(kind: int) -> None:
    with pytest.raises(MalformedMessage, match="unknown kind"):
        apply(kind, b"\0", OLD)


@pytest.mark.parametrize("kind", [DENSE, WHOLE])
@pytest.mark.parametrize("payload", [b"", bytes(8), struct.pack("<II", 500, 500) + bytes(999), bytes(1009)])
def test_hostile_planes_are_refused(kind: int, payload: bytes) -> None:
    target = OLD.copy()
    with pytest.raises(MalformedMessage):
        BlockDecoder().apply(kind, memoryview(payload), target)
    assert (target == OLD).all()


def test_a_bomb_is_refused_before_it_takes_memory() -> None:
    honest = zstandard.compress(bytes(1000))
    bombs = [
        zstandard.compress(bytes(100 << 20)),  # the frame states its size
        zstandard.ZstdCompressor(write_content_size=False).compress(bytes(100 << 20)),  # the frame does not state it
        b"\x28\xb5\x2f\xfd\xe0" + (1 << 62).to_bytes(8, "little") + b"\x01\0\0",  # the stated size is false
        honest + honest,
        honest[:-1],
    ]
    tracemalloc.start()
    for bomb in bombs:
        padded = items(1, np.zeros(max(1000, len(bomb) + 1)))
        with pytest.raises(MalformedMessage):
            apply(WHOLE, struct.pack("<I", len(bomb)) + bomb, padded)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@given(st.data())
@settings(deadline=None, max_examples=100)
def test_a_damaged_block_is_refused_untouched_or_stays_in_its_items(data: st.DataObject) -> None:
    size = data.draw(st.sampled_from(ITEM_SIZES))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    old = items(size, rng.integers(0, 200, 600))
    new = np.where(rng.random(600) < data.draw(st.sampled_from([0.05, 0.4, 0.9])), old + old.dtype.type(3), old)
    kind, payload = record(old, new)
    damaged = bytearray(payload)
    damaged[data.draw(st.integers(0, len(payload) - 1))] ^= data.draw(st.integers(1, 255))
    memory = np.concatenate([old, old, old])
    target = memory[600:1200]
    try:
        BlockDecoder().apply(kind, memoryview(bytes(damaged)), target)
    except MalformedMessage:
        assert (target == old).all()
    assert (memory[:600] == old).all()
    assert (memory[1200:] == old).all()


def test_the_costliest_sparse_block_is_bounded_too() -> None:
    """Half of the items have changed, all streams are zeros: the most positions for the fewest bytes."""
    count = DELTA_BLOCK_BYTES // 2
    pack = zstandard.ZstdCompressor(level=1).compress
    bits = pack(bytes(count // 8))
    payload = sparse(count, pack(bytes(count)), b"", bits, bits, b"", b"", gap_count=count)
    target = np.zeros(DELTA_BLOCK_BYTES, np.uint8)
    tracemalloc.start()
    BlockDecoder().apply(SPARSE, memoryview(payload), target)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.count_nonzero(target) == count
    assert peak_bytes < 7 * DELTA_BLOCK_BYTES
