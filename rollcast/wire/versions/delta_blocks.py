"""Encode and decode one block of a delta: how the new items of a stretch of one tensor follow from the old ones.

A tensor is cut into blocks of ``limits.DELTA_BLOCK_BYTES``; each becomes one record: kind (1 byte), length of the
payload (4 bytes), payload. All numbers are little-endian. Items are compared as unsigned integers of their size, so
that every dtype and every bit pattern (NaN, -0.0) is preserved.

    unchanged   no payload
    sparse      header, then six streams: gaps, their low bits, signs, flags, magnitudes, wide differences
    dense       new - old of all items, zig-zag coded; one stream per byte of the item: all first bytes, then all others
    whole       the new items, in streams like those of dense

A stream is stored raw, or as one zstd frame if that is shorter. Bytes of unlike distribution are in separate streams,
because each stream then gets its own Huffman table; values that are nearly always the same take a bit and not a byte,
because a Huffman code cannot be shorter than one bit. On updates of training the result is 3-8 % above the entropy of
independent changes.

- A gap is the number of unchanged items before a changed one, without its lowest bits, in one byte; 255 means "advance
  by 255, and more follows". The low bits are uniform in practice and stored separately; their number follows from the
  mean gap.
- new - old, modulo the item's size, has a sign and a flag that is set if the difference is more than 1. If it is set,
  the magnitude byte is the difference's size - 2; 255 means that new - old is stored in full in the wide differences.

A block is decoded and checked in full before an item of the state changes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import zstandard

from rollcast.runtime.errors import MalformedMessage
from rollcast.wire import limits
from rollcast.wire.checks import require

Items = np.ndarray[tuple[int], np.dtype[Any]]
Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]
Positions = np.ndarray[tuple[int], np.dtype[np.int32]]
Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]

UNCHANGED, SPARSE, DENSE, WHOLE = 0, 1, 2, 3

RECORD_HEADER = struct.Struct("<BI")
_SPARSE_HEADER = struct.Struct("<II6I")  # changed items, gaps with escapes, stored lengths of the streams

ZSTD_LEVEL = 1  # higher levels save under 1 % and cost three times the time
_ESCAPE = 0xFF
_SHIFT_MAX = 8
_MEAN_GAP_MAX = 128  # after the shift: leaves an eighth of the gaps to be escaped
_SPARSE_SHARE_MAX = 1 / 2  # share of changed items; it bounds the memory of positions, and above it dense is shorter
_CHOOSE_FROM_SHARE = 1 / 8  # share of changed items below which sparse is always the shortest
_SAMPLE_ITEMS = 1 << 15  # items on which the kinds are compared
_WORD_BYTES = 8
_WORD = np.dtype("<u8")
_CHANGED_WORDS_SHARE_MAX = 1 / 2  # above it, finding the changed items in the words costs more than in the block


def payload_bytes_max(item_size_bytes: int, count: int) -> int:
    """Return the size of the longest payload of a block of ``count`` items: kind whole, with no compressible stream."""
    return 4 * item_size_bytes + item_size_bytes * count


@dataclass(frozen=True, slots=True)
class _Changes:
    """The items of a block that differ: their positions, ascending, and their old and new values."""

    positions: Positions
    old: Items
    new: Items


class BlockEncoder:
    """An encoder of blocks, one after the other; two threads must not use it at once.

    Args:
        invertible: use no kind from which the old items cannot be computed.
    """

    def __init__(self, *, invertible: bool = False) -> None:
        self._zstd = zstandard.ZstdCompressor(level=ZSTD_LEVEL)
        self._plain = DENSE if invertible else WHOLE  # the kind that is never longer than the items themselves
        self._differ = np.empty(0, np.bool_)  # used again for each block: fresh memory costs page faults

    def encode(self, old: Items, new: Items) -> bytes:
        """Return the record of one block. ``old`` and ``new``: [n] unsigned integers, of the same dtype and length."""
        few = self._few_changes(old, new)
        if few is not None and not len(few.positions):
            return RECORD_HEADER.pack(UNCHANGED, 0)
        if few is not None:
            kind, payload = SPARSE, self._sparse(few, len(new))
        else:
            is_changed = old != new
            kind = self._best_kind(old, new, is_changed)
            payload = self._payload(kind, old, new, is_changed)
        if len(payload) > payload_bytes_max(new.itemsize, len(new)):
            kind, payload = self._plain, self._plain_payload(self._plain, old, new)  # the sample was unlike it
        return RECORD_HEADER.pack(kind, len(payload)) + payload

    def _few_changes(self, old: Items, new: Items) -> _Changes | None:
        """Return the changed items if they are so few that sparse is the shortest kind; None otherwise.

        Words of several items are compared first: most of them are equal, so that far less is written and searched.
        """
        per_word = _WORD_BYTES // new.itemsize
        tail = len(new) % per_word
        whole = slice(0, len(new) - tail)
        before, after = old[whole].view(_WORD), new[whole].view(_WORD)
        words = self._differing(before, after)
        if len(words) > _CHANGED_WORDS_SHARE_MAX * len(after):
            return None
        before, after = before.take(words).view(old.dtype), after.take(words).view(new.dtype)
        inside = np.flatnonzero(before != after)
        positions = _members(words, inside, per_word)
        before, after = before.take(inside), after.take(inside)
        if tail:
            last = len(new) - tail + np.flatnonzero(old[-tail:] != new[-tail:])
            positions = np.concatenate([positions, last])
            before, after = np.concatenate([before, old[last]]), np.concatenate([after, new[last]])
        if len(positions) and len(positions) >= _CHOOSE_FROM_SHARE * len(new):
            return None
        return _Changes(positions.astype(np.int32), before, after)

    def _differing(self, before: Items, after: Items) -> Items:
        """Return the indices of the words that differ, ascending.

        NumPy searches a mask of which few are true ten times slower than one of which an eighth or more are, so groups
        of flags are searched first.
        """
        count = len(after)
        groups = -(-count // _WORD_BYTES)
        if len(self._differ) < _WORD_BYTES * groups:
            self._differ = np.empty(_WORD_BYTES * groups, np.bool_)
        mask = self._differ[: _WORD_BYTES * groups]
        mask[count:] = False
        np.not_equal(before, after, out=mask[:count])
        flags = mask.view(_WORD)
        found = np.flatnonzero(flags != 0)
        inside = np.flatnonzero(flags[found].view(np.bool_))
        return _members(found, inside, _WORD_BYTES)

    def _best_kind(self, old: Items, new: Items, is_changed: Mask) -> int:
        """Return the kind that encodes a stretch from the middle of the block in the fewest bytes."""
        start = max(0, (len(new) - _SAMPLE_ITEMS) // 2)
        stretch = slice(start, start + _SAMPLE_ITEMS)
        sample = old[stretch], new[stretch], is_changed[stretch]
        if not sample[2].any():
            return self._plain if np.mean(is_changed) > _SPARSE_SHARE_MAX else SPARSE
        forms = {DENSE, self._plain} | ({SPARSE} if np.mean(is_changed) <= _SPARSE_SHARE_MAX else set())
        return min(sorted(forms), key=lambda kind: len(self._payload(kind, *sample)))

    def _payload(self, kind: int, old: Items, new: Items, is_changed: Mask) -> bytes:
        if kind == SPARSE:
            positions = np.flatnonzero(is_changed).astype(np.int32)
            return self._sparse(_Changes(positions, old[positions], new[positions]), len(old))
        return self._plain_payload(kind, old, new)

    def _plain_payload(self, kind: int, old: Items, new: Items) -> bytes:
        stored = [self._pack(plane) for plane in _planes(new if kind == WHOLE else _zigzag(new - old))]
        return b"".join([struct.pack(f"<{len(stored)}I", *map(len, stored)), *stored])

    def _sparse(self, changes: _Changes, count: int) -> bytes:
        positions = changes.positions
        gaps, low_bits = _gaps_of(positions, _shift_of(len(positions), count))
        stored = [self._pack(stream) for stream in (gaps, low_bits, *_differences_of(changes.old, changes.new))]
        header = _SPARSE_HEADER.pack(len(positions), len(gaps), *map(len, stored))
        return b"".join([header, *stored])

    def _pack(self, stream: Bytes) -> bytes:
        raw = stream.tobytes()
        packed = self._zstd.compress(raw)
        return packed if len(packed) < len(raw) else raw


def _members(groups: Items, inside: Items, size: int) -> Items:
    """Return the indices of members of groups of ``size``, a power of two, of which only some are looked at.

    Args:
        groups: the indices of these groups, ascending.
        inside: the indices of the members among those of these groups alone.
    """
    shift = size.bit_length() - 1  # NumPy shifts signed integers in a third of the time that // and % take
    result: Items = (groups.take(inside >> shift) << shift) + (inside & (size - 1))
    return result


def _shift_of(changed: int, count: int) -> int:
    """Return how many low bits of the gaps are stored separately if ``changed`` of ``count`` items differ."""
    return min((count // changed // _MEAN_GAP_MAX).bit_length(), _SHIFT_MAX)


def _planes(items: Items) -> list[Bytes]:
    """Split items into byte planes, least significant first: one array [n] per byte of the item."""
    rows = np.ascontiguousarray(items).view(np.uint8).reshape(len(items), items.itemsize)
    return [np.ascontiguousarray(rows[:, byte]) for byte in range(items.itemsize)]


def _gaps_of(positions: Positions, shift: int) -> tuple[Bytes, Bytes]:
    """Return the gaps of ascending positions with escapes, and the gaps' low bits, packed."""
    gaps = np.diff(positions, prepend=np.int32(-1)) - np.int32(1)
    low_bits = np.empty(0, np.uint8)
    if shift:
        low_bits = np.packbits(np.unpackbits(gaps.astype(np.uint8)[:, None], axis=1, count=shift, bitorder="little"))
        gaps >>= shift
    if gaps.max() < _ESCAPE:
        return gaps.astype(np.uint8), low_bits
    escapes = gaps // _ESCAPE
    ends = np.cumsum(escapes + np.int32(1), dtype=np.int32) - np.int32(1)  # index of each gap's last byte
    result = np.full(int(ends[-1]) + 1, _ESCAPE, np.uint8)
    result[ends] = gaps - escapes * _ESCAPE
    return result, low_bits


def _differences_of(old: Items, new: Items) -> tuple[Bytes, Bytes, Bytes, Bytes]:
    """Return the streams of the differences: signs (bits), flags (bits), magnitudes, wide differences (byte planes)."""
    up, down = new - old, old - new
    is_negative = down < up
    sizes = np.minimum(up, down)
    is_more = sizes > 1
    more = np.flatnonzero(is_more)
    magnitudes = sizes.take(more) - 2
    is_wide = magnitudes >= _ESCAPE
    wide = np.concatenate(_planes(up.take(more[is_wide])))
    magnitudes[is_wide] = _ESCAPE
    return np.packbits(is_negative), np.packbits(is_more), magnitudes.astype(np.uint8), wide


class BlockDecoder:
    """A decoder of blocks in place, one after the other.

    Args:
        inverse: turn new items into old ones instead.
    """

    def __init__(self, *, inverse: bool = False) -> None:
        self._inverse = inverse
        self._zstd = zstandard.ZstdDecompressor(max_window_size=limits.DELTA_WINDOW_BYTES_MAX)

    def apply(self, kind: int, payload: memoryview, items: Items) -> None:
        """Turn old items into new ones; ``items``: [n] unsigned integers, writable.

        Raises:
            MalformedMessage: the payload is not a record of a block of n items, or the old items do not follow from
                it; ``items`` is unchanged.
        """
        if kind == SPARSE:
            self._apply_sparse(payload, items)
        elif kind == DENSE:
            differences = _unzigzag(self._joined_planes(payload, items))
            items += np.negative(differences) if self._inverse else differences
        elif kind == WHOLE:
            require(not self._inverse, "delta: a block that has no inverse")
            items[:] = self._joined_planes(payload, items)
        else:
            require(kind == UNCHANGED and not payload, "delta: unknown kind of block")

    def _apply_sparse(self, payload: memoryview, items: Items) -> None:
        require(len(payload) >= _SPARSE_HEADER.size, "delta: a block is cut short")
        count, gap_count, *stored = _SPARSE_HEADER.unpack_from(payload)
        require(0 < count <= _SPARSE_SHARE_MAX * len(items), "delta: number of changes out of range")
        # Every escape advances by at least 255 items, so this bounds the memory that the streams below may take.
        require(count <= gap_count <= count + len(items) // _ESCAPE, "delta: number of gaps out of range")
        shift = _shift_of(count, len(items))
        streams = _Streams(self._zstd, payload[_SPARSE_HEADER.size :], stored)
        positions = _positions_of(streams.take(gap_count), streams.take_bits(count * shift), shift, count, len(items))
        differences = _differences(streams, count, items.itemsize)
        streams.finish()
        np.add.at(items, positions, np.negative(differences) if self._inverse else differences)

    def _joined_planes(self, payload: memoryview, items: Items) -> Items:
        header = struct.Struct(f"<{items.itemsize}I")
        require(len(payload) >= header.size, "delta: a block is cut short")
        streams = _Streams(self._zstd, payload[header.size :], header.unpack_from(payload))
        planes = [streams.take(len(items)) for _ in range(items.itemsize)]
        streams.finish()
        return _joined(planes, items.itemsize)


class _Streams:
    """A reader of the streams of one payload, in order."""

    def __init__(self, zstd: zstandard.ZstdDecompressor, data: memoryview, stored: Any) -> None:
        self._zstd = zstd
        self._data = data
        self._stored = iter(stored)

    def take(self, raw_bytes: int) -> Bytes:
        """Return the next stream, which must have ``raw_bytes`` bytes; nothing larger is ever allocated.

        Raises:
            MalformedMessage: the stream is cut short, has another size or cannot be decompressed.
        """
        size = next(self._stored)
        require(size <= min(raw_bytes, len(self._data)), "delta: length of a stream out of range")
        packed, self._data = self._data[:size], self._data[size:]
        if size == raw_bytes:
            return np.frombuffer(packed, np.uint8)
        try:
            # The decompressor allocates the size that the frame's header states, so it is checked first.
            require(zstandard.frame_content_size(packed) == raw_bytes, "delta: size of a stream")
            raw = self._zstd.decompress(packed, max_output_size=raw_bytes, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise MalformedMessage("delta: a stream cannot be decompressed", cause=str(error)) from None
        require(len(raw) == raw_bytes, "delta: size of a stream")
        return np.frombuffer(raw, np.uint8)

    def take_bits(self, count: int) -> Bytes:
        """Return the next stream of ``count`` packed bits as one byte per bit, 0 or 1."""
        return np.unpackbits(self.take(-(-count // 8)), count=count)

    def finish(self) -> None:
        """Check that no bytes are left.

        Raises:
            MalformedMessage: there are bytes after the last stream.
        """
        require(not self._data, "delta: a block continues after its streams")


def _zigzag(differences: Items) -> Items:
    """Map small numbers of either sign to small unsigned ones: 0, -1, 1, -2 become 0, 1, 2, 3."""
    signed = differences.view(np.dtype(f"<i{differences.itemsize}"))
    result: Items = ((signed << 1) ^ (signed >> (8 * differences.itemsize - 1))).view(differences.dtype)
    return result


def _unzigzag(codes: Items) -> Items:
    result: Items = (codes >> 1) ^ np.negative(codes & 1)
    return result


def _joined(planes: list[Bytes], width: int) -> Items:
    """Join byte planes, least significant first, to items of ``width`` bytes."""
    rows = np.empty((len(planes[0]), width), np.uint8)
    for byte, plane in enumerate(planes):
        rows[:, byte] = plane
    result: Items = rows.reshape(-1).view(np.dtype(f"<u{width}"))
    return result


def _positions_of(gaps: Bytes, low_bits: Bytes, shift: int, count: int, item_count: int) -> Items:
    """Return [count] strictly ascending positions below ``item_count`` from gaps with escapes and their low bits.

    Raises:
        MalformedMessage: the gaps are not ``count``, or reach beyond ``item_count``.
    """
    is_end = gaps != _ESCAPE
    require(bool(is_end[-1]) and int(np.count_nonzero(is_end)) == count, "delta: number of gaps")
    low = np.packbits(low_bits.reshape(count, shift), axis=1, bitorder="little").reshape(-1) if shift else None
    low_sum = 0 if low is None else int(low.sum(dtype=np.int64))
    last = (int(gaps.sum(dtype=np.int64)) << shift) + low_sum + count - 1
    require(last < item_count, "delta: a position beyond the tensor")  # so 32 bits are enough below
    reached = np.cumsum(gaps, dtype=np.int32)
    if count != len(gaps):
        reached = reached[is_end]
    reached <<= shift
    reached += np.arange(count, dtype=np.int32) if low is None else np.cumsum(low + np.int32(1), dtype=np.int32) - 1
    return reached


def _differences(streams: _Streams, count: int, item_size_bytes: int) -> Items:
    """Return the difference to add to each of ``count`` changed items, modulo the item's size."""
    dtype = np.dtype(f"<u{item_size_bytes}")
    is_negative = streams.take_bits(count).astype(dtype)
    more = np.flatnonzero(streams.take_bits(count).view(np.bool_))
    magnitudes = streams.take(len(more))
    is_wide = magnitudes == _ESCAPE
    wide_count = int(np.count_nonzero(is_wide))
    wide = streams.take(wide_count * item_size_bytes)
    result: Items = np.ones(count, dtype)
    result[more] = magnitudes.astype(dtype) + dtype.type(2)
    # Two's complement, twice as fast as np.negative with a mask.
    result ^= np.negative(is_negative)
    result += is_negative
    if wide_count:
        result[more[is_wide]] = _joined(np.split(wide, item_size_bytes), item_size_bytes)
    return result
