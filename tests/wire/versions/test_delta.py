from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.limits import DELTA_BLOCK_BYTES
from rollcast.wire.versions import delta
from rollcast.wire.versions.delta import DeltaDecoder, InPlace, delta_bytes_max, encode_delta, is_invertible
from rollcast.wire.versions.delta_blocks import RECORD_HEADER
from rollcast.wire.versions.tensors import ITEM_SIZE_BYTES, TensorSpec, tensor_table

Table = tuple[TensorSpec, ...]
MIXED = tensor_table(
    [("a", "bfloat16", (64, 9)), ("b", "float8_e4m3fn", (77,)), ("c", "float32", (3, 5)), ("d", "int64", ())]
)

tables = st.lists(st.tuples(st.sampled_from(sorted(ITEM_SIZE_BYTES)), st.integers(1, 150)), min_size=1, max_size=5).map(
    lambda items: tensor_table((f"t{i}", dtype, (size,)) for i, (dtype, size) in enumerate(items))
)
changes = st.sampled_from(["none", "few", "half", "all"])
sizes_of_change = st.sampled_from(["one", "small", "any"])


@pytest.fixture(autouse=True)
def _small_blocks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Use blocks of 128 bytes, so that small states have many; not in tests about sizes and memory."""
    with patch.object(delta, "DELTA_BLOCK_BYTES", DELTA_BLOCK_BYTES if "real_blocks" in request.fixturenames else 128):
        yield


@pytest.fixture
def real_blocks() -> None:
    pass


def size_of(table: Table) -> int:
    return sum(tensor.size_bytes for tensor in table)


def changed_tensor(rng: np.random.Generator, old: bytes, item_size: int, share: float, size: str) -> bytes:
    items = np.frombuffer(old, f"<u{item_size}").copy()
    mask = rng.random(len(items)) < share
    if size == "any":
        items[mask] = np.frombuffer(rng.bytes(len(old)), items.dtype)[mask]
    else:
        step = rng.integers(1, 2 if size == "one" else 100, len(items)).astype(items.dtype)
        items[mask] += np.where(rng.random(len(items)) < 0.5, step, -step)[mask]
    return items.tobytes()


@st.composite
def updates(draw: st.DrawFn) -> tuple[Table, bytes, bytes]:
    """Generate a table and two states of it; each tensor changes in its own way."""
    table = draw(tables)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    old = rng.bytes(size_of(table))
    parts = []
    for tensor in table:
        share = {"none": 0.0, "few": 0.03, "half": 0.5, "all": 1.0}[draw(changes)]
        part = old[tensor.offset_bytes : tensor.offset_bytes + tensor.size_bytes]
        parts.append(changed_tensor(rng, part, ITEM_SIZE_BYTES[tensor.dtype], share, draw(sizes_of_change)))
    return table, old, b"".join(parts)


def encoded(table: Table, old: bytes, new: bytes) -> bytes:
    return b"".join(encode_delta(table, old, new))


def decoded(table: Table, old: bytes, data: bytes) -> bytes:
    state = bytearray(old)
    decoder = DeltaDecoder(table, InPlace(state))
    decoder.feed(data)
    decoder.finish()
    return bytes(state)


def an_update(table: Table = MIXED, seed: int = 0, share: float = 0.1) -> tuple[bytes, bytes]:
    rng = np.random.default_rng(seed)
    old = rng.bytes(size_of(table))
    parts = [
        changed_tensor(
            rng, old[t.offset_bytes : t.offset_bytes + t.size_bytes], ITEM_SIZE_BYTES[t.dtype], share, "small"
        )
        for t in table
    ]
    return old, b"".join(parts)


# ---------------------------------------------------------------- to the bit


@given(updates())
@settings(deadline=None, max_examples=100)
def test_any_update_comes_back_to_the_bit(update: tuple[Table, bytes, bytes]) -> None:
    table, old, new = update
    data = encoded(table, old, new)
    assert decoded(table, old, data) == new
    assert len(data) <= delta_bytes_max(table)


@given(updates(), st.data())
@settings(deadline=None, max_examples=50)
def test_any_split_gives_the_same_state(update: tuple[Table, bytes, bytes], data: st.DataObject) -> None:
    table, old, new = update
    stream = encoded(table, old, new)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    state = bytearray(old)
    decoder = DeltaDecoder(table, InPlace(state))
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        decoder.feed(stream[start:stop])
    decoder.finish()
    assert state == new


@given(updates())
@settings(deadline=None, max_examples=50)
def test_an_invertible_delta_leads_both_ways(update: tuple[Table, bytes, bytes]) -> None:
    table, old, new = update
    data = b"".join(encode_delta(table, old, new, invertible=True))
    assert is_invertible(data)
    assert len(data) <= delta_bytes_max(table)
    assert decoded(table, old, data) == new
    state = bytearray(new)
    decoder = DeltaDecoder(table, InPlace(state), inverse=True)
    decoder.feed(data)
    decoder.finish()
    assert state == old


def test_several_threads_make_the_same_delta() -> None:
    table = tensor_table([("a", "bfloat16", (5000,)), ("b", "float8_e4m3fn", (777,)), ("c", "float32", (300,))])
    rng = np.random.default_rng(0)
    old = rng.bytes(size_of(table))
    new = bytearray(old)
    for place in rng.choice(len(old), 200):
        new[place] ^= 1
    read: list[int] = []
    pieces = encode_delta(table, old, new, invertible=True, before_reading=read.append, threads=3)
    assert b"".join(pieces) == b"".join(encode_delta(table, old, new, invertible=True))
    assert read == sorted(read)
    assert read[-1] == len(new)


def test_a_delta_with_whole_blocks_has_no_inverse() -> None:
    table = tensor_table([("w", "bfloat16", (5000,))])
    old, new = np.random.default_rng(0).bytes(10_000), bytes(10_000)
    data = encoded(table, old, new)
    assert not is_invertible(data)
    assert not is_invertible(data[:-1])
    with pytest.raises(MalformedMessage, match="no inverse"):
        DeltaDecoder(table, InPlace(bytearray(new)), inverse=True).feed(data)


def test_it_decodes_into_a_part_of_the_callers_memory() -> None:
    old, new = an_update()
    memory = bytearray(b"\xaa" * 5 + old + b"\xaa" * 5)
    decoder = DeltaDecoder(MIXED, InPlace(memoryview(memory)[5:-5]))
    decoder.feed(encoded(MIXED, old, new))
    decoder.finish()
    assert bytes(memory) == b"\xaa" * 5 + new + b"\xaa" * 5


# ---------------------------------------------------------------- sizes


def test_a_hundredth_of_bf16_values_one_off_takes_a_hundredth_of_the_bytes_less_a_third(real_blocks: None) -> None:
    rng = np.random.default_rng(0)
    old = (rng.standard_normal(1 << 22, np.float32) * 0.02).view(np.uint32) >> 16
    step = np.where(rng.random(1 << 22) < 0.01, rng.choice([-1, 1], 1 << 22), 0)
    table = tensor_table([("w", "bfloat16", (1 << 22,))])
    before, after = old.astype("<u2").tobytes(), (old + step).astype("<u2").tobytes()
    data = encoded(table, before, after)
    assert decoded(table, before, data) == after
    # Entropy: 8.08 bits for the place and 1 for the direction of each change.
    assert 0.01 * 9.08 / 16 < len(data) / len(before) < 0.01 * 9.6 / 16


def test_unchanged_blocks_take_five_bytes_each(real_blocks: None) -> None:
    table = tensor_table([("w", "float32", (1 << 20,))])
    state = np.random.default_rng(0).bytes(4 << 20)
    assert len(encoded(table, state, state)) == 4 + 2 * RECORD_HEADER.size


def test_a_tensor_that_became_another_one_is_sent_whole(real_blocks: None) -> None:
    table = tensor_table([("w", "bfloat16", (1 << 20,))])
    rng = np.random.default_rng(0)
    old, noise, zeros = rng.bytes(2 << 20), rng.bytes(2 << 20), bytes(2 << 20)
    assert len(encoded(table, old, noise)) <= delta_bytes_max(table)
    assert len(encoded(table, old, zeros)) < 300


# ---------------------------------------------------------------- hostile input


@given(updates(), st.data())
@settings(deadline=None, max_examples=100)
def test_a_damaged_delta_is_refused_or_gives_another_state(
    update: tuple[Table, bytes, bytes], data: st.DataObject
) -> None:
    table, old, new = update
    stream = bytearray(encoded(table, old, new))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(stream) - 1))
        match data.draw(st.sampled_from(["flip", "insert", "remove"])):
            case "flip":
                stream[place] ^= data.draw(st.integers(1, 255))
            case "insert":
                stream[place:place] = data.draw(st.binary(min_size=1, max_size=9))
            case _ if len(stream) > 1:
                del stream[place]
    guarded = bytearray(b"\xaa" * 64 + old + b"\xaa" * 64)
    decoder = DeltaDecoder(table, InPlace(memoryview(guarded)[64:-64]))
    try:
        decoder.feed(stream)
        decoder.finish()
    except MalformedMessage:
        pass
    assert guarded[:64] == guarded[-64:] == b"\xaa" * 64


@given(st.binary(max_size=300))
@settings(deadline=None, max_examples=100)
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(MalformedMessage):  # at the latest because bytes are missing
        decoded(MIXED, bytes(size_of(MIXED)), b"RCD\x01" + noise)


def test_every_truncation_is_refused() -> None:
    old, new = an_update()
    data = encoded(MIXED, old, new)
    for length in range(len(data)):
        with pytest.raises(MalformedMessage, match="cut short"):
            decoded(MIXED, old, data[:length])


def test_bytes_after_the_end_are_refused() -> None:
    old, new = an_update()
    with pytest.raises(MalformedMessage, match="after the end"):
        decoded(MIXED, old, encoded(MIXED, old, new) + b"\0")


def test_another_format_is_refused() -> None:
    with pytest.raises(MalformedMessage, match="not a delta"):
        decoded(MIXED, bytes(size_of(MIXED)), b"RCD\x02" + bytes(100))


def test_a_refused_delta_stays_refused() -> None:
    old, new = an_update()
    data = encoded(MIXED, old, new)
    decoder = DeltaDecoder(MIXED, InPlace(bytearray(old)))
    with pytest.raises(MalformedMessage):
        decoder.feed(b"RCD\x02")
    with pytest.raises(MalformedMessage, match="refused before"):
        decoder.feed(data)
    with pytest.raises(MalformedMessage, match="refused before"):
        decoder.finish()


def test_a_record_longer_than_its_block_is_refused_before_it_is_kept() -> None:
    decoder = DeltaDecoder(MIXED, InPlace(bytearray(size_of(MIXED))))
    with pytest.raises(MalformedMessage, match="longer than its items"):
        decoder.feed(b"RCD\x01" + RECORD_HEADER.pack(1, 2**32 - 1))


@pytest.mark.parametrize("size", [size_of(MIXED) - 1, size_of(MIXED) + 1, 0])
def test_tensors_that_do_not_fill_the_state_are_refused(size: int) -> None:
    with pytest.raises(MalformedMessage):
        DeltaDecoder(MIXED, InPlace(bytearray(size)))
    with pytest.raises(MalformedMessage):
        encoded(MIXED, bytes(size), bytes(size_of(MIXED)))
    with pytest.raises(MalformedMessage):
        encoded(MIXED, bytes(size_of(MIXED)), bytes(size))


@pytest.mark.parametrize(
    "tensor",
    [
        TensorSpec("w", "complex64", (1,), 0, 8),
        TensorSpec("w", "float32", (2,), 4, 8),
        TensorSpec("w", "float32", (2,), -8, 8),
        TensorSpec("w", "float32", (2,), 0, 7),
        TensorSpec("w", "float32", (2,), 0, -8),
    ],
)
def test_a_table_that_leaves_the_state_is_refused(tensor: TensorSpec) -> None:
    with pytest.raises(MalformedMessage):
        DeltaDecoder([tensor], InPlace(bytearray(8)))


def test_a_read_only_state_is_our_own_bug() -> None:
    with pytest.raises(ValueError, match="in place"):
        DeltaDecoder(MIXED, InPlace(memoryview(bytes(size_of(MIXED)))))


@pytest.mark.parametrize("dtype", ["uint8", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("share", [0.01, 0.12, 0.49, 1.0])
def test_memory_is_bounded_by_the_block(real_blocks: None, dtype: str, share: float) -> None:
    table = tensor_table([("w", dtype, (3 * DELTA_BLOCK_BYTES // ITEM_SIZE_BYTES[dtype],))])
    old, new = an_update(table, share=share)
    data = encoded(table, old, new)
    state = bytearray(old)
    tracemalloc.start()
    decoder = DeltaDecoder(table, InPlace(state))
    decoder.feed(data)
    decoder.finish()
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert state == new
    assert peak_bytes < 7 * DELTA_BLOCK_BYTES
