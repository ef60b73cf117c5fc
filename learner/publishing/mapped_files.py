"""States on disk, read through the page cache a stretch at a time: what was looked at need not stay in our memory."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

from blake3 import blake3

from rollcast.wire.versions.chunks import BytesLike, chunk_list

STRETCH_BYTES = 8 << 20
"""Looked at between two times that pages are given back; a multiple of every chunk size."""


def map_file(path: Path) -> memoryview:
    """The bytes of a file that is not empty. It may be renamed or removed, but must never be cut short.

    Raises:
        OSError: it cannot be read.
        ValueError: it is empty.
    """
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def give_back(data: BytesLike) -> None:
    """Let the kernel take the pages of a mapped file out of our resident memory; elsewhere nothing happens."""
    mapped = data.obj if isinstance(data, memoryview) else None
    if isinstance(mapped, mmap.mmap):
        mapped.madvise(mmap.MADV_DONTNEED)


def stretches(data: BytesLike) -> Iterator[memoryview]:
    """The bytes, one stretch after the other, each given back when the next is asked for."""
    view = memoryview(data).cast("B")
    for start in range(0, len(view), STRETCH_BYTES):
        yield view[start : start + STRETCH_BYTES]
        give_back(view)


def hash_of(data: BytesLike) -> bytes:
    """BLAKE3, 32 bytes: what rollcast.wire.versions.records.state_hash says."""
    digest = blake3(max_threads=blake3.AUTO)
    for stretch in stretches(data):
        digest.update(stretch)
    return digest.digest()


def chunk_hashes_of(data: BytesLike, chunk_size_bytes: int) -> bytes:
    """The hashes of all chunks: what rollcast.wire.versions.chunks.chunk_list says."""
    if STRETCH_BYTES % chunk_size_bytes:
        return chunk_list(data, chunk_size_bytes)
    return b"".join(chunk_list(stretch, chunk_size_bytes) for stretch in stretches(data))
