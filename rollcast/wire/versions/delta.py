"""Encode and decode lossless deltas, which turn the state of one version into that of another with the same tensors.

    encoded = b"".join(encode_delta(tensors, old_state, new_state))
    decoder = DeltaDecoder(tensors, InPlace(state))  # state holds the old one
    decoder.feed(encoded)                            # in pieces of any size
    decoder.finish()                                 # state holds the new one

A stream is a magic number and the records of all blocks (``delta_blocks``) in the order of the tensor table. It names
neither its base nor its result: the signed manifest and record do, and the receiver compares the hash of the state.
This module does no I/O and holds only the current block in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.checks import require
from rollcast.wire.limits import DELTA_BLOCK_BYTES
from rollcast.wire.versions.chunks import BytesLike
from rollcast.wire.versions.delta_blocks import (
    RECORD_HEADER,
    WHOLE,
    BlockDecoder,
    BlockEncoder,
    Items,
    payload_bytes_max,
)
from rollcast.wire.versions.parallel import in_order
from rollcast.wire.versions.tensors import ITEM_SIZE_BYTES, TensorSpec

_MAGIC = b"RCD\x01"  # the last byte is the format's number


@dataclass(frozen=True, slots=True)
class _Block:
    """A contiguous part of one tensor."""

    offset_bytes: int  # offset in the state
    item_size_bytes: int
    count: int

    @property
    def stop(self) -> int:
        """Return the offset of the end of the block in the state, in bytes."""
        return self.offset_bytes + self.count * self.item_size_bytes

    def items(self, block: memoryview) -> Items:
        """Return the items of the block: [count] unsigned integers that share memory with ``block``."""
        return np.frombuffer(block, np.dtype(f"<u{self.item_size_bytes}"), self.count)


class StateBlocks(Protocol):
    """A state that is changed into another one, block by block in ascending order."""

    size_bytes: int

    def load(self, start: int, stop: int) -> memoryview:
        """Return the old bytes [start, stop) in writable memory; at most ``DELTA_BLOCK_BYTES``."""

    def store(self, start: int, block: memoryview) -> None:
        """Store the new bytes, which ``block``, the block loaded last, now holds."""


class InPlace:
    """A state in memory that is changed in place."""

    def __init__(self, state: memoryview | bytearray) -> None:
        self._state = memoryview(state).cast("B")
        if self._state.readonly:
            raise ValueError("a delta is decoded in place, into a writable state")
        self.size_bytes = len(self._state)

    def load(self, start: int, stop: int) -> memoryview:
        """Return the block as a part of the state; see StateBlocks."""
        return self._state[start:stop]

    def store(self, start: int, block: memoryview) -> None:
        """Do nothing: the block is part of the state."""


def encode_delta(
    tensors: Sequence[TensorSpec],
    old_state: BytesLike,
    new_state: BytesLike,
    *,
    invertible: bool = False,
    before_reading: Callable[[int], None] = lambda until_bytes: None,
    after_reading: Callable[[int], None] = lambda until_bytes: None,
    threads: int = 1,
) -> Iterator[bytes]:
    """Yield the delta that turns ``old_state`` into ``new_state``, in pieces of at most one block.

    Args:
        tensors: the tensor table of both states.
        old_state: the state that the receiver holds.
        new_state: the state that the receiver is to hold.
        invertible: make a delta that also leads from ``new_state`` back to ``old_state``.
        before_reading: called before the bytes of ``new_state`` up to the given offset are read, in ascending order.
        after_reading: called with offsets below which neither state is read any more, in ascending order.
        threads: how many encode blocks at the same time; the delta is the same.

    Raises:
        MalformedMessage: the tensors do not fill the states.
    """
    old, new = memoryview(old_state).cast("B"), memoryview(new_state).cast("B")
    _check_table(tensors, len(old))
    _check_table(tensors, len(new))
    encoders = [BlockEncoder(invertible=invertible) for _ in range(threads)]  # one for each thread

    def readable() -> Iterator[_Block]:
        for block in _blocks(tensors):
            before_reading(block.stop)
            yield block

    def encode(block: _Block) -> bytes:
        stretch, encoder = slice(block.offset_bytes, block.stop), encoders.pop()
        try:
            return encoder.encode(block.items(old[stretch]), block.items(new[stretch]))
        finally:
            encoders.append(encoder)

    yield _MAGIC
    for block, piece in zip(_blocks(tensors), in_order(encode, readable(), threads), strict=True):
        after_reading(block.stop)
        yield piece


def is_invertible(delta: BytesLike) -> bool:
    """Return whether a DeltaDecoder with ``inverse`` can use this delta; False if it is malformed."""
    view, at = memoryview(delta).cast("B"), len(_MAGIC)
    while at + RECORD_HEADER.size <= len(view):
        kind, size_bytes = RECORD_HEADER.unpack_from(view, at)
        if kind == WHOLE:
            return False
        at += RECORD_HEADER.size + size_bytes
    return at == len(view)


def delta_bytes_max(tensors: Sequence[TensorSpec]) -> int:
    """Return the size of the longest possible delta between two states; a manifest that names more is not honest."""
    return len(_MAGIC) + sum(_tensor_bytes_max(ITEM_SIZE_BYTES[one.dtype], one.size_bytes) for one in tensors)


def _tensor_bytes_max(item_size_bytes: int, size_bytes: int) -> int:
    def record_bytes_max(block_bytes: int) -> int:
        return RECORD_HEADER.size + payload_bytes_max(item_size_bytes, block_bytes // item_size_bytes)

    blocks, rest = divmod(size_bytes, DELTA_BLOCK_BYTES)
    return blocks * record_bytes_max(DELTA_BLOCK_BYTES) + (record_bytes_max(rest) if rest else 0)


class DeltaDecoder:
    """A decoder that changes a state into another one, block by block, while the delta arrives.

    Besides the state it needs memory for one block: at most seven times ``limits.DELTA_BLOCK_BYTES``, whatever
    arrives. Each block is checked in full before it is applied, but the blocks before it have been applied by then:
    after a refusal, or before ``finish``, the state is neither the old nor the new one, and the caller discards it.

    Args:
        tensors: the tensor table of both states.
        state: the old state.
        inverse: turn the new state into the old one instead.

    Attributes:
        done_bytes: the bytes of the state, from its beginning, that are new.

    Raises:
        MalformedMessage: the tensors do not fill the state.
    """

    def __init__(self, tensors: Sequence[TensorSpec], state: StateBlocks, *, inverse: bool = False) -> None:
        _check_table(tensors, state.size_bytes)
        self.done_bytes = 0
        self._state = state
        self._blocks = _blocks(tensors)
        self._block: _Block | None = None
        self._kind: int | None = None  # kind of the record whose payload is awaited
        self._decoder = BlockDecoder(inverse=inverse)
        self._buffer = bytearray()
        self._wanted_bytes = len(_MAGIC)  # bytes that the buffer needs for the next step
        self._started = False
        self._refused = False

    def feed(self, data: BytesLike) -> None:
        """Take the next bytes of the delta, any number of them.

        Raises:
            MalformedMessage: these bytes, or earlier ones, are not part of a delta between states of these tensors.
        """
        require(not self._refused, "delta: refused before")
        try:
            view = memoryview(data).cast("B")
            while len(view):
                require(self._wanted_bytes > 0, "delta: bytes after the end")
                missing = self._wanted_bytes - len(self._buffer)
                self._buffer += view[:missing]
                view = view[missing:]
                if len(self._buffer) == self._wanted_bytes:
                    self._step()
        except MalformedMessage:
            self._refused = True
            raise

    def finish(self) -> None:
        """Declare the end of the delta. The state is then the new one; the caller compares it with its hash.

        Raises:
            MalformedMessage: bytes are missing, or the delta was refused before.
        """
        require(not self._refused, "delta: refused before")
        require(self._wanted_bytes == 0, "delta: cut short")

    def _step(self) -> None:
        data = bytes(self._buffer)
        self._buffer.clear()
        if not self._started:
            require(data == _MAGIC, "delta: not a delta of a known format")
            self._started = True
            self._next_block()
        elif self._kind is None:
            self._on_header(data)
        else:
            self._apply(self._kind, memoryview(data))

    def _on_header(self, data: bytes) -> None:
        assert self._block is not None
        kind, size_bytes = RECORD_HEADER.unpack(data)
        longest = payload_bytes_max(self._block.item_size_bytes, self._block.count)
        require(size_bytes <= longest, "delta: a block is longer than its items")
        if size_bytes:
            self._kind, self._wanted_bytes = kind, size_bytes
        else:
            self._apply(kind, memoryview(b""))

    def _apply(self, kind: int, payload: memoryview) -> None:
        assert self._block is not None
        start, stop = self._block.offset_bytes, self._block.stop
        block = self._state.load(start, stop)
        self._decoder.apply(kind, payload, self._block.items(block))
        self._state.store(start, block)
        self.done_bytes = stop
        self._next_block()

    def _next_block(self) -> None:
        self._kind = None
        self._block = next(self._blocks, None)
        self._wanted_bytes = 0 if self._block is None else RECORD_HEADER.size


def _blocks(tensors: Sequence[TensorSpec]) -> Iterator[_Block]:
    for tensor in tensors:
        item_size_bytes = ITEM_SIZE_BYTES[tensor.dtype]
        end = tensor.offset_bytes + tensor.size_bytes
        for offset in range(tensor.offset_bytes, end, DELTA_BLOCK_BYTES):
            size_bytes = min(DELTA_BLOCK_BYTES, end - offset)
            yield _Block(offset, item_size_bytes, size_bytes // item_size_bytes)


def _check_table(tensors: Sequence[TensorSpec], state_bytes: int) -> None:
    """Check that the tensors lie one after the other and fill the state; all later indexing relies on this.

    Raises:
        MalformedMessage: they do not.
    """
    end = 0
    for tensor in tensors:
        require(tensor.dtype in ITEM_SIZE_BYTES, f"delta: tensor {tensor.name} has an unknown dtype")
        fits = tensor.offset_bytes == end and tensor.size_bytes >= 0
        require(fits and tensor.size_bytes % ITEM_SIZE_BYTES[tensor.dtype] == 0, f"delta: layout of {tensor.name}")
        end += tensor.size_bytes
    require(end == state_bytes, f"delta: tensors of {end} bytes for a state of {state_bytes}")
