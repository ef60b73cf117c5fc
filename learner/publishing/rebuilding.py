"""Make the state of a version from that of another one and the deltas between them."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterable
from pathlib import Path

from learner.publishing.mapped_files import hash_of, stretches
from learner.publishing.memory_files import MemoryFile
from rollcast.runtime.errors import CheckpointError, MalformedMessage
from rollcast.wire.versions.chunks import BytesLike
from rollcast.wire.versions.delta import DeltaDecoder, InPlace
from rollcast.wire.versions.files import write_all
from rollcast.wire.versions.records import VersionRecord

Delta = tuple[bytes, bool]
"""The bytes of a delta, and whether it is applied forwards."""


def rebuild(
    record: VersionRecord, source: BytesLike, deltas: Iterable[Delta], memory: MemoryFile | None, folder: Path, fix: str
) -> memoryview:
    """Copy a state and apply deltas to the copy, one after the other; returns the state that the record names.

    Args:
        source: the state to begin with, of the same tensors.
        memory: the file in memory to make the state in; None: make it in a file on disk that has no name.
        folder: the folder for that file.
        fix: what a person does if it fails.

    Raises:
        CheckpointError: the result is another state.
        OSError: the disk is full or read-only, or there is not enough memory.
    """
    if memory is not None:
        _copy(source, memory.descriptor)
        _apply(record, memory.descriptor, deltas, fix)
        return memory.map(record.state_size_bytes)
    with tempfile.TemporaryFile(dir=folder, prefix=".rebuilt-") as file:
        _copy(source, file.fileno())
        _apply(record, file.fileno(), deltas, fix)
        return memoryview(mmap.mmap(file.fileno(), record.state_size_bytes, access=mmap.ACCESS_READ))


def apply_in_place(record: VersionRecord, memory: MemoryFile, deltas: Iterable[Delta], fix: str) -> memoryview:
    """Apply deltas to the state in a memory file that nothing reads; see rebuild."""
    _apply(record, memory.descriptor, deltas, fix)
    return memory.map(record.state_size_bytes)


def _copy(source: BytesLike, descriptor: int) -> None:
    start = 0
    for stretch in stretches(source):
        write_all(descriptor, stretch, start)
        start += len(stretch)


def _apply(record: VersionRecord, descriptor: int, deltas: Iterable[Delta], fix: str) -> None:
    state = memoryview(mmap.mmap(descriptor, record.state_size_bytes))
    try:
        for delta, forwards in deltas:
            decoder = DeltaDecoder(record.tensors, InPlace(state), inverse=not forwards)
            decoder.feed(delta)
            decoder.finish()
        if hash_of(state) != record.state_hash:
            raise MalformedMessage("its bytes do not match its record")
    except MalformedMessage as error:
        what = f"the copy of version {record.version}, made of another version and deltas, is damaged"
        raise CheckpointError(what, cause=error.what, fix=fix) from None
