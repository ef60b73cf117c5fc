"""Cut an encoding into chunks, hash them, and keep bitmaps of the chunks that a process holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from blake3 import blake3

from rollcast.runtime.errors import CorruptChunk, MalformedMessage
from rollcast.wire.limits import CHUNK_COUNT_MAX, CHUNK_SIZE_BYTES_MAX

BytesLike = bytes | bytearray | memoryview

HASH_BYTES = 32
"""BLAKE3's digest."""

_CHUNK_SIZE_BYTES = 32 << 10
_CHUNK_SIZE_BYTES_MIN = 8 << 10
_CHUNKS_WANTED_MIN = 256
_CHUNKS_WANTED_MAX = 4096  # chunks of one encoding: a list of 128 KiB

_BLOCK_CHUNKS = 1024
_BLOCK_BYTES = _BLOCK_CHUNKS * HASH_BYTES

_THREADED_FROM_BYTES = 1 << 20  # below this, starting threads costs more than they save


def blake3_hash(data: BytesLike) -> bytes:
    """Return the BLAKE3 hash of ``data``, 32 bytes; large data is hashed on all cores."""
    threads = blake3.AUTO if len(data) >= _THREADED_FROM_BYTES else 1
    return blake3(data, max_threads=threads).digest()


def chunk_size_for(size_bytes: int) -> int:
    """Return the chunk size that suits an encoding, a power of two.

    Chunks of 32 KiB relay best (smaller ones cost more per byte, larger ones are coarser). Large encodings have larger
    chunks, up to 1 MiB, so that the number of chunks stays bounded. An encoding smaller than 256 chunks is cut finer,
    down to 8 KiB: a few chunks on their way to slow relays would be a large part of it, and nothing behind a gap can be
    decoded yet. (A delta of 2.5 MB
    in the simulated scenario het50: 1.20 x the bound with 8 KiB, 1.36 with 16 KiB, 1.42 with 32 KiB.)
    """
    size = _CHUNK_SIZE_BYTES
    while size > _CHUNK_SIZE_BYTES_MIN and chunk_count(size_bytes, size) < _CHUNKS_WANTED_MIN:
        size //= 2
    while size < CHUNK_SIZE_BYTES_MAX and chunk_count(size_bytes, size) > _CHUNKS_WANTED_MAX:
        size *= 2
    return size


def chunk_count(size_bytes: int, chunk_size_bytes: int) -> int:
    """Return how many chunks ``size_bytes`` make; the last one may be shorter."""
    return -(-size_bytes // chunk_size_bytes)


def cut(size_bytes: int, chunk_size_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of every chunk, in bytes."""
    for start in range(0, size_bytes, chunk_size_bytes):
        yield start, min(start + chunk_size_bytes, size_bytes)


def chunk_list(data: BytesLike, chunk_size_bytes: int) -> bytes:
    """Return the BLAKE3 hashes of all chunks of ``data``, concatenated: 32 bytes a chunk."""
    view = memoryview(data).cast("B")
    return b"".join(
        blake3(view[start:stop], max_threads=1).digest() for start, stop in cut(len(view), chunk_size_bytes)
    )


def chunk_list_hash(hashes: bytes) -> bytes:
    """Return the hash of a chunk list, which is what a manifest signs.

    It is the hash of the hashes of the list's blocks, so that one entry can be proved without sending the whole list.
    """
    return blake3_hash(_block_hashes(hashes))


@dataclass(frozen=True, slots=True)
class ListProof:
    """The part of a chunk list that proves one of its entries.

    Args:
        block: the hashes of the block with the entry, at most 32 KiB.
        block_hashes: the hashes of all blocks, at most 8 KiB.
    """

    block: bytes
    block_hashes: bytes

    @classmethod
    def of(cls, hashes: bytes, index: int) -> ListProof:
        """Return the proof of entry ``index`` of a verified list."""
        start = index // _BLOCK_CHUNKS * _BLOCK_BYTES
        return cls(hashes[start : start + _BLOCK_BYTES], _block_hashes(hashes))

    def proved_hash(self, index: int, count: int, signed_hash: bytes) -> bytes:
        """Return the hash of chunk ``index`` of the list of ``count`` chunks whose hash is ``signed_hash``.

        Raises:
            MalformedMessage: the proof does not lead to the signed hash, or the list has no such chunk.
        """
        number, place = divmod(index, _BLOCK_CHUNKS)
        own = self.block_hashes[number * HASH_BYTES : (number + 1) * HASH_BYTES]
        entries = min(_BLOCK_CHUNKS, count - number * _BLOCK_CHUNKS)
        whole = 0 <= index < count and len(self.block_hashes) == -(-count // _BLOCK_CHUNKS) * HASH_BYTES
        if not whole or len(self.block) != entries * HASH_BYTES:
            raise MalformedMessage("the proof of a chunk's hash has another size")
        if blake3_hash(self.block_hashes) != signed_hash or blake3_hash(self.block) != own:
            raise MalformedMessage("the proof of a chunk's hash does not lead to the signed hash")
        return self.block[place * HASH_BYTES : (place + 1) * HASH_BYTES]


def _block_hashes(hashes: bytes) -> bytes:
    return b"".join(blake3_hash(hashes[start : start + _BLOCK_BYTES]) for start in range(0, len(hashes), _BLOCK_BYTES))


def check_chunk(hashes: bytes, index: int, data: BytesLike) -> None:
    """Check that ``data`` is chunk ``index`` of the list ``hashes``.

    Raises:
        CorruptChunk: ``data`` has another hash, or the list has no such chunk.
    """
    expected = hashes[index * HASH_BYTES : (index + 1) * HASH_BYTES] if index >= 0 else b""
    if blake3(data, max_threads=1).digest() != expected:
        raise CorruptChunk(
            f"chunk {index} does not match its signed hash",
            cause="a relay or the connection changed it",
            fix="it is fetched again from another source",
        )


# ---------------------------------------------------------------- bitmaps of chunks, as in the message Have


def new_bitmap(count: int) -> bytearray:
    """Return an empty bitmap of ``count`` chunks, one bit each; the most significant bit of the first byte is chunk
    0."""
    return bytearray((count + 7) // 8)


def parse_bitmap(bitmap: bytes, count: int) -> bytearray:
    """Return a bitmap of ``count`` chunks that came from the network, checked.

    Raises:
        MalformedMessage: its length or its unused bits are wrong.
    """
    if not 0 < count <= CHUNK_COUNT_MAX or len(bitmap) != (count + 7) // 8:
        raise MalformedMessage(f"a bitmap of {len(bitmap)} bytes does not fit {count} chunks")
    if count % 8 and bitmap[-1] & (0xFF >> count % 8):
        raise MalformedMessage("a bitmap names chunks beyond the last")
    return bytearray(bitmap)


def bitmap_has(bitmap: BytesLike, index: int) -> bool:
    """Return whether the bitmap holds chunk ``index``."""
    return bool(bitmap[index >> 3] & (0x80 >> (index & 7)))


def bitmap_add(bitmap: bytearray, index: int) -> None:
    """Add chunk ``index`` to the bitmap."""
    bitmap[index >> 3] |= 0x80 >> (index & 7)


def bitmap_count(bitmap: BytesLike) -> int:
    """Return how many chunks the bitmap holds."""
    return int.from_bytes(bitmap, "big").bit_count()
