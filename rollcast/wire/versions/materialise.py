"""Make a version's state on disk from an older version's state and a delta, while the delta still arrives.

The base is read and the new state written block by block, so that memory is needed for one block. Disk space for the
new
state is reserved before the first chunk arrives, and each block is hashed as it is written, while it is in the
processor's
cache: little is left to do once the last chunk has arrived.
"""

from __future__ import annotations

import os
from pathlib import Path

from blake3 import blake3

from rollcast.runtime.errors import CorruptChunk, MalformedMessage, StoreError
from rollcast.wire.limits import DELTA_BLOCK_BYTES
from rollcast.wire.versions.delta import DeltaDecoder
from rollcast.wire.versions.files import preallocate, write_all
from rollcast.wire.versions.stored_encoding import StoredEncoding, store_error


class Materialisation:
    """One state that is being made, by one thread at a time.

    Its base cannot be pruned until ``close`` is called.

    Args:
        base: the keyframe of the version that the delta starts from; its state is held.
        delta: the encoding whose chunks arrive.
        path: the file to make.

    Raises:
        StoreError: the disk is full or read-only, or base and delta do not belong together.
    """

    def __init__(self, base: StoredEncoding, delta: StoredEncoding, path: Path) -> None:
        record, old = delta.verified.record, base.verified.record
        if not base.state_held or delta.manifest.base_version != base.version:
            raise StoreError(f"{base!r} is not the base of {delta!r}")
        if old.tensors != record.tensors:
            raise StoreError(f"version {base.version} has other tensors than version {record.version}")
        self.delta = delta
        self.path = path
        self._base = base
        self._next_chunk = 0
        self._refusal = ""  # the reason why the delta is malformed
        self._lease = base.reader()
        self._lease.__enter__()
        try:
            self._file = _FileBlocks(base, path, record.state_size_bytes)
        except OSError as error:
            self._lease.__exit__(None, None, None)
            raise store_error(path.parent, error) from None
        self._decoder = DeltaDecoder(record.tensors, self._file)

    def advance(self, budget_bytes: int) -> bool:
        """Apply chunks that have arrived, in order, until about ``budget_bytes`` of the state have been made.

        Returns:
            Whether anything was done; False once the delta has proved malformed, after which ``finish`` raises.

        Raises:
            StoreError: the disk refuses.
        """
        until = self._decoder.done_bytes + budget_bytes
        before = self._next_chunk
        while not self._refusal and self._decoder.done_bytes < until and self.delta.has(self._next_chunk):
            self._apply(self.delta.read(self._next_chunk))
            self._next_chunk += 1
        return self._next_chunk > before

    def finish(self) -> None:
        """Apply the rest and check the hash of the state.

        Raises:
            CorruptChunk: the result is not the state that the learner signed.
            StoreError: chunks are missing, or the disk refuses.
        """
        if not self.delta.complete:
            raise StoreError(f"{self.delta!r} cannot be applied")
        while self.advance(DELTA_BLOCK_BYTES):
            pass
        version = self.delta.version
        try:
            self._decoder.finish()
        except MalformedMessage as error:
            raise _corrupt(version, self._refusal or error.what) from None
        if self._file.digest() != self.delta.verified.record.state_hash:
            raise _corrupt(version, f"version {self._base.version} with it does not hash to the signed state")

    def close(self) -> None:
        """Release the base and close the file, which stays on disk. May be called again."""
        if self._file.descriptor >= 0:
            self._file.close()
            self._lease.__exit__(None, None, None)

    def _apply(self, chunk: bytes) -> None:
        try:
            self._decoder.feed(chunk)
        except MalformedMessage as error:
            self._refusal = error.what
        except OSError as error:
            raise store_error(self.path.parent, error) from None


class _FileBlocks:
    """Read the blocks of one file, write those of another and hash them; a rollcast.wire.versions.delta.StateBlocks."""

    def __init__(self, base: StoredEncoding, path: Path, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._base = base
        self._block = memoryview(bytearray(min(DELTA_BLOCK_BYTES, size_bytes)))
        self._blake3 = blake3()  # on one thread: a block is too small for waking other cores to pay
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            preallocate(self.descriptor, size_bytes)
        except OSError:
            self.close()
            raise

    def load(self, start: int, stop: int) -> memoryview:
        block = self._block[: stop - start]
        self._base.read_state(block, start)
        return block

    def store(self, start: int, block: memoryview) -> None:
        write_all(self.descriptor, block, start)
        self._blake3.update(block)

    def digest(self) -> bytes:
        """Return the BLAKE3 hash of the blocks so far, which is the state's once all are made."""
        return self._blake3.digest()

    def close(self) -> None:
        os.close(self.descriptor)
        self.descriptor = -1


def _corrupt(version: int, cause: str) -> CorruptChunk:
    return CorruptChunk(
        f"a delta does not lead to version {version}",
        cause=cause,
        fix="the version is received another way; if this repeats, check the disk",
    )
