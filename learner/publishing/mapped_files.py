"""Read states on disk as mapped files, a stretch at a time, so that they do not stay in this process's memory."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from learner.publishing.growth import Wait, unheeded
from learner.publishing.memory_files import MemoryMap
from rollcast.wire.versions.chunks import BytesLike, chunk_list, chunk_list_hash
from rollcast.wire.versions.parallel import in_order, threads_for_a_pass
from rollcast.wire.versions.state_hash import LEAF_BYTES

STRETCH_BYTES = 8 << 20
"""Bytes read before their pages are returned to the kernel; a multiple of every chunk size."""


def map_file(path: Path) -> memoryview:
    """Map the bytes of a file. The file may be renamed or removed meanwhile, but must never be truncated.

    Raises:
        OSError: it cannot be read.
        ValueError: it is empty.
    """
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def give_back(data: BytesLike) -> None:
    """Remove the pages of a mapped file on disk from this process's resident memory; other buffers are left alone."""
    mapped = data.obj if isinstance(data, memoryview) else None
    if isinstance(mapped, mmap.mmap) and not isinstance(mapped, MemoryMap):
        mapped.madvise(mmap.MADV_DONTNEED)


def stretches(data: BytesLike, wait: Wait = unheeded) -> Iterator[memoryview]:
    """Yield the bytes stretch by stretch; the pages of each are returned when the next is requested.

    Args:
        wait: waits until the bytes are written.
    """
    view = memoryview(data).cast("B")
    for start in range(0, len(view), STRETCH_BYTES):
        wait(min(start + STRETCH_BYTES, len(view)))
        yield view[start : start + STRETCH_BYTES]
        give_back(view)


def hash_of(data: BytesLike, wait: Wait = unheeded) -> bytes:
    """Return the hash of a state, 32 bytes; it equals rollcast.wire.versions.state_hash.state_hash."""
    return chunk_list_hash(chunk_hashes_of(data, LEAF_BYTES, wait))


def chunk_hashes_of(data: BytesLike, chunk_size_bytes: int, wait: Wait = unheeded) -> bytes:
    """Return the hashes of all chunks; they equal rollcast.wire.versions.chunks.chunk_list."""
    if STRETCH_BYTES % chunk_size_bytes:
        wait(len(data))
        return chunk_list(data, chunk_size_bytes)
    hashes = partial(chunk_list, chunk_size_bytes=chunk_size_bytes)
    return b"".join(in_order(hashes, stretches(data, wait), threads_for_a_pass()))
