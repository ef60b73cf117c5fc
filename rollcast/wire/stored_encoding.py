"""One encoding of a version on disk."""

from __future__ import annotations

import errno
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from blake3 import blake3

from rollcast.runtime.errors import CorruptChunk, StoreError
from rollcast.runtime.run_folder import fsync_folder
from rollcast.wire.chunks import (
    BytesLike,
    bitmap_add,
    bitmap_count,
    bitmap_has,
    check_chunk,
    new_bitmap,
)
from rollcast.wire.ids import EncodingId, Version
from rollcast.wire.records import Manifest, VerifiedVersion

_HASH_STEP_BYTES = 8 << 20


class StoredEncoding:
    """Chunks of one encoding, each verified before it is written and again when it is read.

    Made by ``ChunkStore``. Any thread may write and read chunks, also while another finishes or verifies.

    Attributes:
        verified: the version it belongs to.
        manifest: how it is cut.
        have: bitmap of the chunks that are here, as in the message Have.
    """

    def __init__(self, folder: Path, verified: VerifiedVersion, manifest: Manifest, chunk_list: bytes) -> None:
        self.verified = verified
        self.manifest = manifest
        self.have = new_bitmap(manifest.chunk_count)
        self.readers = 0
        self._folder = folder
        self._chunk_list = chunk_list
        self._finished = False
        self._state_verified = False
        self._descriptor = -1
        self._lock = threading.Lock()  # of the bitmap, whose bytes two chunks may share, and of readers
        self._close: Callable[[], object] = lambda: None

    def __repr__(self) -> str:
        held = bitmap_count(self.have)
        return f"StoredEncoding({self.version}/{self.encoding_id}, {held} of {self.manifest.chunk_count} chunks)"

    # ------------------------------------------------------------ opening, by the store

    def open_partial(self) -> None:
        """Preallocate the file, or take over the verified chunks of one that is there.

        Raises:
            StoreError: the disk is full or read-only.
        """
        try:
            is_there = self._part_path.exists()
            self._open(self._part_path, os.O_RDWR | os.O_CREAT)
            if not is_there or os.fstat(self._descriptor).st_size != self.manifest.size_bytes:
                _preallocate(self._descriptor, self.manifest.size_bytes)
            else:
                self._rehash()
        except OSError as error:
            self.close()
            raise store_error(self._folder, error) from None

    def open_complete(self) -> bool:
        """Open the finished file; False when there is none or its size is wrong.

        Raises:
            StoreError: it cannot be opened.
        """
        try:
            if self._data_path.stat().st_size != self.manifest.size_bytes:
                return False
            self._open(self._data_path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise store_error(self._folder, error) from None
        for index in range(self.manifest.chunk_count):
            bitmap_add(self.have, index)
        self._finished = True
        return True

    def close(self) -> None:
        """Give the file descriptor back; the encoding cannot be used afterwards."""
        self._close()
        self._descriptor = -1  # the number may be somebody else's file by now

    # ------------------------------------------------------------ what it is

    @property
    def version(self) -> Version:
        """The version it encodes."""
        return self.manifest.version

    @property
    def encoding_id(self) -> EncodingId:
        """Which encoding of the version."""
        return self.manifest.encoding_id

    @property
    def complete(self) -> bool:
        """Every chunk is here and verified; durable only once ``finished``."""
        return bitmap_count(self.have) == self.manifest.chunk_count

    @property
    def finished(self) -> bool:
        """Durable, and visible as complete."""
        return self._finished

    def has(self, index: int) -> bool:
        """Whether chunk ``index`` is here."""
        return 0 <= index < self.manifest.chunk_count and bitmap_has(self.have, index)

    def chunk_list(self) -> bytes:
        """The signed list of chunk hashes, 32 bytes a chunk."""
        return self._chunk_list

    # ------------------------------------------------------------ chunks

    def write(self, index: int, data: BytesLike) -> bool:
        """Verify a chunk and store it; False when it was here already.

        Raises:
            CorruptChunk: it does not match its signed hash.
            MalformedMessage: there is no such chunk.
            StoreError: the disk refuses.
        """
        start, stop = self.manifest.chunk_range(index)
        check_chunk(self._chunk_list, index, data)
        if bitmap_has(self.have, index):
            return False
        try:
            _write_all(self._descriptor, memoryview(data), start, stop)
        except OSError as error:
            raise store_error(self._folder, error) from None
        with self._lock:
            bitmap_add(self.have, index)
        return True

    def read(self, index: int) -> bytes:
        """A chunk, verified again so that a failing disk does not make liars of us.

        Raises:
            StoreError: it is not here, or the disk changed it.
            MalformedMessage: there is no such chunk.
        """
        start, stop = self.manifest.chunk_range(index)
        if not bitmap_has(self.have, index):
            raise StoreError(f"chunk {index} of version {self.version} is not here")
        try:
            data = os.pread(self._descriptor, stop - start, start)
            check_chunk(self._chunk_list, index, data)
        except OSError as error:
            raise store_error(self._folder, error) from None
        except CorruptChunk:
            raise StoreError(
                f"chunk {index} of version {self.version} changed on disk",
                cause=f"the disk under {self._folder} is failing, or somebody wrote to it",
                fix="check the disk, remove the folder and start again",
            ) from None
        return data

    # ------------------------------------------------------------ the whole

    def verify_state(self) -> None:
        """Hash the keyframe's bytes as they are on disk and compare with the record's state hash.

        Raises:
            CorruptChunk: they are not the state that the learner signed.
            StoreError: not a complete uncompressed keyframe.
        """
        if self._state_verified:
            return
        digest = blake3(max_threads=blake3.AUTO)
        view = self.state_bytes()
        for start in range(0, len(view), _HASH_STEP_BYTES):
            digest.update(view[start : start + _HASH_STEP_BYTES])
        if digest.digest() != self.verified.record.state_hash:
            raise CorruptChunk(
                f"the state of version {self.version} does not match its signed hash",
                cause="the disk changed it, or the learner signed a wrong record",
                fix="remove the version's folder; it is received again",
            )
        self._state_verified = True

    def state_bytes(self) -> memoryview:
        """The state, read-only and mapped from disk; stays valid after the version is pruned.

        Raises:
            StoreError: not a complete uncompressed keyframe.
        """
        if self.manifest.kind != "keyframe" or self.manifest.compression or not self.complete:
            raise StoreError(f"{self!r} is not a complete keyframe")
        try:
            return memoryview(mmap.mmap(self._descriptor, self.manifest.size_bytes, access=mmap.ACCESS_READ))
        except OSError as error:
            raise store_error(self._folder, error) from None

    def finish(self) -> None:
        """Make it durable, then visible as complete. May be called again.

        Raises:
            StoreError: chunks are missing, or the disk refuses.
        """
        if self._finished:
            return
        if not self.complete:
            raise StoreError(f"{self!r} cannot be finished")
        try:
            os.fsync(self._descriptor)  # announcement and chunk list have been durable since begin
            os.replace(self._part_path, self._data_path)
            fsync_folder(self._folder)
        except OSError as error:
            raise store_error(self._folder, error) from None
        self._finished = True

    @contextmanager
    def reader(self) -> Iterator[StoredEncoding]:
        """While the body runs, ``ChunkStore.prune`` leaves this version alone."""
        with self._lock:
            self.readers += 1
        try:
            yield self
        finally:
            with self._lock:
                self.readers -= 1

    # ------------------------------------------------------------ inside

    @property
    def _part_path(self) -> Path:
        return self._folder / f"{self.encoding_id}.part"

    @property
    def _data_path(self) -> Path:
        return self._folder / f"{self.encoding_id}.data"

    def _open(self, path: Path, flags: int) -> None:
        self._descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
        self._close = weakref.finalize(self, os.close, self._descriptor)

    def _rehash(self) -> None:
        for index in range(self.manifest.chunk_count):
            start, stop = self.manifest.chunk_range(index)
            try:
                check_chunk(self._chunk_list, index, os.pread(self._descriptor, stop - start, start))
            except CorruptChunk:
                continue
            bitmap_add(self.have, index)


def store_error(folder: Path, error: OSError) -> StoreError:
    """Turn an operating-system error about the store into one that a person can act on."""
    cause = str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        cause = f"disk full: {error}"
        fix = "free some space, keep fewer versions, or put the state folder on another disk"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        fix = "make the folder writable for this user"
    else:
        fix = "check the disk"
    return StoreError(f"cannot keep versions in {folder}", cause=cause, fix=fix)


def _preallocate(descriptor: int, size_bytes: int) -> None:
    """Room for the whole file now, so that a full disk shows before the first chunk."""
    os.ftruncate(descriptor, 0)
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        os.ftruncate(descriptor, size_bytes)  # a file system that cannot reserve


def _write_all(descriptor: int, view: memoryview, start: int, stop: int) -> None:
    view = view.cast("B")
    while start < stop:
        written = os.pwrite(descriptor, view, start)
        view = view[written:]
        start += written
