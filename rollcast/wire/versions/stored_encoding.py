"""Read and write one encoding of a version on disk."""

from __future__ import annotations

import errno
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rollcast.runtime.errors import CorruptChunk, MalformedMessage, StoreError
from rollcast.runtime.run_folder import fsync_folder, write_atomically
from rollcast.wire.ids import EncodingId, Version
from rollcast.wire.versions.chunks import (
    BytesLike,
    bitmap_add,
    bitmap_count,
    bitmap_has,
    check_chunk,
    chunk_list,
    new_bitmap,
)
from rollcast.wire.versions.files import extend, preallocate, read_all, read_vector, write_vector
from rollcast.wire.versions.records import Manifest, VerifiedVersion
from rollcast.wire.versions.state_hash import LEAF_BYTES, PrefixHash, StateHash
from rollcast.wire.versions.state_memory import StateMemory, memory_for

Undo = Callable[[StateMemory], None]
"""Makes the state in a memory again of what it was changed into; it may raise StoreError."""


@dataclass(frozen=True, slots=True)
class Draft:
    """The beginning of a keyframe that was written before the encoding was known.

    Args:
        path: its file, on the disk of the store.
        chunks: how many chunks, from the first on, were found equal to those of the signed list.
        state_hash: the state hash of these chunks; None: not known.
    """

    path: Path
    chunks: int
    state_hash: StateHash | None


class StoredEncoding:
    """The chunks of one encoding, each verified before it is written and again when it is read.

    ``ChunkStore`` creates it. Any thread may write and read chunks, also while another finishes or verifies; only one
    thread at a time may hash the state.

    A keyframe that was made from a delta has no chunk list at first: its state can be used, but its chunks
    cannot be read before ``list_chunks``.

    Attributes:
        verified: the version that it belongs to.
        manifest: the way in which it is cut into chunks.
        have: bitmap of the chunks on disk, as in the message Have.
        folder: the folder of the version's files.
        lineage: the encodings on disk, as (version, encoding), from which a state in memory can be made again: a
            keyframe and the deltas after it. Empty for all others.
    """

    def __init__(
        self,
        folder: Path,
        verified: VerifiedVersion,
        manifest: Manifest,
        hashes: bytes | None,
        *,
        memory_only: bool = False,
        hash_states: bool = True,
    ) -> None:
        self._memory_only = memory_only  # chunks are received in memory, and nothing is written to disk
        self._hash_states = hash_states  # otherwise a keyframe is right if each of its chunks is
        self.verified = verified
        self.manifest = manifest
        self.have = new_bitmap(manifest.chunk_count)
        self.readers = 0
        self.folder = self._folder = folder
        self.lineage: tuple[tuple[Version, EncodingId], ...] = ()
        self._memory: StateMemory | None = None
        self._taken = False  # the memory has become another version's
        self._undo: Undo | None = None  # of what was changed in the memory
        self._chunk_list = hashes
        self._finished = False
        self._state_verified = False
        self._state_hash: PrefixHash | None = None  # under way
        self._leaves = b""  # the hashes of the leaves of a state that was made here
        self._leading_chunks = 0  # chunks on disk before the first gap
        self._descriptor = -1
        # Guards readers, the memory, the file's name, and the bitmap, in which several chunks share a byte. Reentrant:
        # the end of a mapping may be noticed, by the garbage collector, in the middle of a locked section.
        self._lock = threading.RLock()
        self._close: Callable[[], object] = lambda: None

    def __repr__(self) -> str:
        held = bitmap_count(self.have)
        return f"StoredEncoding({self.version}/{self.encoding_id}, {held} of {self.manifest.chunk_count} chunks)"

    # ------------------------------------------------------------ opening, by the store

    def open_partial(self, draft: Draft | None = None) -> None:
        """Preallocate the file, or resume with the verified chunks of an existing one, or of a draft.

        Raises:
            StoreError: the disk is full or read-only, or there is not enough memory.
        """
        try:
            if self._memory_only:
                self._hold(memory_for(self.manifest.size_bytes))
                return
            if draft is not None:
                self._adopt(draft)
                return
            exists = self._part_path.exists()
            self._open(self._part_path, os.O_RDWR | os.O_CREAT)
            if not exists or os.fstat(self._descriptor).st_size != self.manifest.size_bytes:
                preallocate(self._descriptor, self.manifest.size_bytes)
            else:
                self._rehash()
        except OSError as error:
            self.close()
            raise store_error(self._folder, error) from None

    def _adopt(self, draft: Draft) -> None:
        os.replace(draft.path, self._part_path)
        self._open(self._part_path, os.O_RDWR)
        extend(self._descriptor, self.manifest.size_bytes)
        for index in range(draft.chunks):
            bitmap_add(self.have, index)
        if draft.state_hash is not None:
            self._state_hash = PrefixHash(self._descriptor, self.manifest.size_bytes, draft.state_hash)

    def open_complete(self) -> bool:
        """Open the finished file. Returns False if there is none or its size is wrong.

        Raises:
            StoreError: the file cannot be opened.
        """
        try:
            if self._data_path.stat().st_size != self.manifest.size_bytes:
                return False
            self._open(self._data_path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise store_error(self._folder, error) from None
        self._have_all()
        self._finished = True
        return True

    def open_made(self, made: Path, leaves: bytes) -> None:
        """Adopt a file that holds the verified state, whose leaves have these hashes.

        Raises:
            StoreError: the disk refuses.
        """
        try:
            os.replace(made, self._part_path)
            self._open(self._part_path, os.O_RDWR)
        except OSError as error:
            raise store_error(self._folder, error) from None
        self._have_all()
        self._leaves, self._state_verified = leaves, True

    def adopt_memory(self, memory: StateMemory, leaves: bytes, lineage: tuple[tuple[Version, EncodingId], ...]) -> None:
        """Adopt the verified state in memory, whose leaves have these hashes; this object closes it from now on.

        It counts as finished, because it can be made again from ``lineage``, whose encodings are all on disk.
        """
        self.lineage = lineage
        self._hold(memory)
        self._have_all()
        self._leaves = leaves
        self._state_verified = self._finished = True

    def _hold(self, memory: StateMemory) -> None:
        self._memory, self._descriptor = memory, memory.descriptor
        self._close = weakref.finalize(self, memory.close)

    @contextmanager
    def changed(self, undo: Undo) -> Iterator[StateMemory | None]:
        """Let the body change the state in memory, which stays held: before it is read next, ``undo`` is called once.

        Yields None if the state is on disk, is being read, or was changed by another caller.
        """
        with self._lock:
            if self._memory is None or self.readers or self._taken or self._undo not in (None, undo):
                yield None
                return
            self._undo = undo
            yield self._memory

    def take_memory(self, undo: Undo | None = None) -> StateMemory | None:
        """Return the memory of the state, to change it into another one; this encoding cannot be used afterwards.

        Returns None, and changes nothing, if the state is on disk or is being read.

        Args:
            undo: what the caller passed to ``changed``: its changes are in the memory.

        Raises:
            StoreError: another caller's changes cannot be undone.
        """
        with self._lock:
            if self._memory is None or self.readers or self._taken:
                return None
            if self._undo != undo:
                self._undo_changes()
            self._undo = None
            memory = self._memory
            self._lose_memory()
            return memory

    def undo(self, undo: Undo) -> None:
        """Undo the changes of the caller that passed this to ``changed``, if there are any.

        Raises:
            StoreError: they cannot be undone; the state is lost.
        """
        with self._lock:
            if self._undo == undo:
                self._undo_changes()

    def _lose_memory(self) -> None:
        self._taken, self._state_verified, self._finished = True, False, False
        self._memory = None
        assert isinstance(self._close, weakref.finalize)
        self._close.detach()
        self._descriptor = -1

    def _undo_changes(self) -> None:
        undo, self._undo, memory = self._undo, None, self._memory
        if undo is None or memory is None:
            return
        try:
            undo(memory)
        except BaseException:
            self._lose_memory()
            memory.close()
            raise

    def close(self) -> None:
        """Close the file descriptor; the encoding cannot be used afterwards."""
        self._close()
        self._descriptor = -1  # another file may have this number by now

    # ------------------------------------------------------------ what it is

    @property
    def version(self) -> Version:
        """Return the version that it encodes."""
        return self.manifest.version

    @property
    def encoding_id(self) -> EncodingId:
        """Return the id of the encoding within the version."""
        return self.manifest.encoding_id

    @property
    def complete(self) -> bool:
        """Whether every chunk is on disk and verified; they are durable only once ``finished``."""
        return bitmap_count(self.have) == self.manifest.chunk_count

    @property
    def finished(self) -> bool:
        """Whether the encoding is durable and visible as complete."""
        return self._finished

    @property
    def in_memory(self) -> bool:
        """Whether this is in memory, where it was made or received, and has no file of its own."""
        return self._memory is not None

    @property
    def memory(self) -> StateMemory | None:
        """Return the memory of the state; None if it is on disk."""
        return self._memory

    @property
    def changing(self) -> bool:
        """Whether a delta has changed some of the state in memory; whoever reads it has that undone first."""
        return self._undo is not None

    @property
    def listed(self) -> bool:
        """Whether the chunk list is known, so that chunks can be read and served."""
        return self._chunk_list is not None

    @property
    def state_held(self) -> bool:
        """Whether this is a keyframe whose state may be used, because it is finished or at least verified."""
        return self.manifest.kind == "keyframe" and (self._finished or self._state_verified)

    def has(self, index: int) -> bool:
        """Whether chunk ``index`` is on disk."""
        return 0 <= index < self.manifest.chunk_count and bitmap_has(self.have, index)

    def chunk_list(self) -> bytes:
        """Return the signed list of chunk hashes, 32 bytes a chunk.

        Raises:
            StoreError: the list is not known yet; see ``list_chunks``.
        """
        if self._chunk_list is None:
            raise StoreError(f"{self!r} has no chunk list yet")
        return self._chunk_list

    # ------------------------------------------------------------ chunks

    def write(self, index: int, data: BytesLike) -> bool:
        """Verify a chunk and store it. Returns False if it was stored before.

        Raises:
            CorruptChunk: the chunk does not match its signed hash.
            MalformedMessage: the encoding has no such chunk.
            StoreError: the disk refuses.
        """
        self.manifest.chunk_range(index)
        check_chunk(self.chunk_list(), index, data)
        if bitmap_has(self.have, index):
            return False
        self.write_verified(index, [data])
        return True

    def write_verified(self, first: int, chunks: Sequence[BytesLike]) -> None:
        """Store consecutive chunks, from chunk ``first`` on, that were checked against the chunk list before.

        Raises:
            MalformedMessage: the encoding has no such chunk.
            StoreError: the disk refuses.
        """
        start, _ = self.manifest.chunk_range(first)
        self.manifest.chunk_range(first + len(chunks) - 1)
        try:
            write_vector(self._descriptor, chunks, start)
        except OSError as error:
            raise store_error(self._folder, error) from None
        with self._lock:
            for index in range(first, first + len(chunks)):
                bitmap_add(self.have, index)

    def read(self, index: int) -> bytes:
        """Return a chunk, verified again so that a failing disk cannot make this process serve corrupt data.

        Raises:
            StoreError: the chunk is not on disk, or the disk changed it.
            MalformedMessage: the encoding has no such chunk.
        """
        start, stop = self.manifest.chunk_range(index)
        data = bytearray(stop - start)
        self.read_into(index, [memoryview(data)])
        return bytes(data)

    def read_into(self, first: int, views: Sequence[memoryview]) -> None:
        """Fill each view with one chunk, consecutive ones from chunk ``first`` on, verified as by ``read``.

        Raises:
            StoreError: a chunk is not on disk, or the disk changed it.
            MalformedMessage: the encoding has no such chunk.
        """
        start, _ = self.manifest.chunk_range(first)
        for index in range(first, first + len(views)):
            if not self.has(index):
                raise StoreError(f"chunk {index} of version {self.version} is not in this store")
        index = first
        try:
            with self.reader():
                read_vector(self._descriptor, views, start)
            for index, view in enumerate(views, first):
                check_chunk(self.chunk_list(), index, view)
        except OSError as error:
            raise store_error(self._folder, error) from None
        except CorruptChunk:
            raise StoreError(
                f"chunk {index} of version {self.version} changed on disk",
                cause=f"the disk under {self._folder} is failing, or another program wrote to it",
                fix="check the disk, remove the folder and start again",
            ) from None

    def read_state(self, view: memoryview, start: int) -> None:
        """Fill ``view`` with the state's bytes from ``start`` on, unverified.

        Raises:
            OSError: the disk refuses.
        """
        read_all(self._descriptor, view, start)

    # ------------------------------------------------------------ the whole

    @property
    def _to_be_hashed(self) -> bool:
        """Whether checking the state takes another pass over its bytes: the chunks, each checked, are no leaves."""
        return (self._hash_states and self.manifest.kind == "keyframe") and not (
            self._state_verified or self._finished or self._taken or self.manifest.chunk_size_bytes == LEAF_BYTES
        )

    def advance_hash(self, budget_bytes: int) -> bool:
        """Hash more of the keyframe's bytes, up to the first gap, so that ``verify_state`` has less to do.

        Returns:
            Whether anything was hashed.

        Raises:
            StoreError: the disk refuses.
        """
        if not self._to_be_hashed:
            return False
        while self.has(self._leading_chunks):
            self._leading_chunks += 1
        here = min(self._leading_chunks * self.manifest.chunk_size_bytes, self.manifest.size_bytes)
        done = 0 if self._state_hash is None else self._state_hash.done_bytes
        if here == done:
            return False
        self._hash_until(min(here, done + budget_bytes))
        return True

    def hash_written(self, first: int, chunks: Sequence[BytesLike]) -> None:
        """Hash a keyframe's chunks that were just written, if they follow what is hashed already.

        From memory that costs two thirds of what it costs from the file, whose pages must be mapped first.

        Raises:
            StoreError: the disk refuses.
        """
        if self._to_be_hashed:
            state_hash = self._hashed_prefix()
            if self.manifest.chunk_range(first)[0] == state_hash.done_bytes:
                state_hash.take(chunks)

    def verify_state(self) -> None:
        """Compare the keyframe with the record's state hash.

        What is left to hash of the file is hashed before. That is nothing where the chunks, checked when they came, are
        the leaves of the hash, or where the store does not hash states: then the chunks count, whose list is signed
        together with the state hash.

        Raises:
            CorruptChunk: the bytes are not the state that the learner signed.
            StoreError: this is not a complete keyframe.
        """
        if self._state_verified:
            return
        self._require_state()
        if self._finished or self._to_be_hashed:
            hashed, self._state_hash = self._hash_until(self.manifest.size_bytes), None
            digest = hashed.digest()
        elif self.manifest.chunk_size_bytes == LEAF_BYTES:
            digest = self.manifest.chunk_list_hash
        else:
            digest = self.verified.record.state_hash
        if digest != self.verified.record.state_hash:
            raise CorruptChunk(
                f"the state of version {self.version} does not match its signed hash",
                cause="the disk changed it, or the learner signed a wrong record",
                fix="remove the version's folder; it is received again",
            )
        self._state_verified = True

    def list_chunks(self) -> None:
        """Hash the chunks of a state that arrived without a chunk list, and keep the list: durably if it is on disk.

        May be called again.

        Raises:
            CorruptChunk: the list is not the signed one.
            StoreError: this is not a complete keyframe, or the disk refuses.
        """
        if self._chunk_list is not None:
            return
        self._require_state()
        hashes = self._leaves if self.manifest.chunk_size_bytes == LEAF_BYTES else b""
        if not hashes:
            with self.reader():
                # A second mapping of memory that is mapped already would count as another state of the process.
                state = self.state_bytes() if self._memory is None else self._memory.view
                hashes = chunk_list(state, self.manifest.chunk_size_bytes)
        try:
            self.manifest.check_chunk_list(hashes)
        except MalformedMessage as error:
            raise CorruptChunk(error.what, cause="the disk changed it, or the learner signed a wrong list") from None
        try:
            if not self.in_memory:
                write_atomically(self._folder / f"{self.encoding_id}.list", hashes)
        except OSError as error:
            raise store_error(self._folder, error) from None
        self._chunk_list = hashes

    def state_bytes(self) -> memoryview:
        """Return the state, read-only and mapped; the view stays valid after the version is pruned.

        A state in memory counts as read as long as the view, or anything made from it without a copy, exists.

        Raises:
            StoreError: this is not a complete keyframe, or its memory has become another version's.
        """
        self._require_state()
        with self.reader():
            try:
                mapped = mmap.mmap(self._descriptor, self.manifest.size_bytes, access=mmap.ACCESS_READ)
            except OSError as error:
                raise store_error(self._folder, error) from None
            if self.in_memory:
                self._count_reader()
                weakref.finalize(mapped, self._end_reader)
            return memoryview(mapped)

    def finish(self) -> None:
        """Make the encoding durable, then visible as complete. May be called again.

        Raises:
            StoreError: chunks are missing, or the disk refuses.
        """
        if self._finished:
            return
        if not self.complete:
            raise StoreError(f"{self!r} cannot be finished")
        if self.in_memory:
            self._finished = True
            return
        try:
            os.fsync(self._descriptor)  # announcement and chunk list have been durable since begin
            with self._lock:
                os.replace(self._part_path, self._data_path)
            fsync_folder(self._folder)
        except OSError as error:
            raise store_error(self._folder, error) from None
        self._finished = True

    @contextmanager
    def reader(self) -> Iterator[StoredEncoding]:
        """Keep ``ChunkStore.prune`` from removing this encoding, and its memory from being taken, in the body.

        Raises:
            StoreError: the memory has become another version's.
        """
        self._count_reader()
        try:
            yield self
        finally:
            self._end_reader()

    def _count_reader(self) -> None:
        with self._lock:
            if self._taken:
                raise StoreError(f"the memory of version {self.version} has become a newer version's")
            self._undo_changes()
            self.readers += 1

    def _end_reader(self) -> None:
        with self._lock:
            self.readers -= 1

    @contextmanager
    def state_file(self) -> Iterator[Path]:
        """Return a name of the file of the state that stays while the body runs, and keep ``prune`` from removing it.

        It is a link of its own, because ``finish`` renames the file, also while an engine loads it. That of a state in
        memory can be opened by other processes of the same user, but not linked.

        Raises:
            StoreError: this is not a complete keyframe, or the file system has no hard links.
        """
        self._require_state()
        with self.reader():
            if self.in_memory:
                yield Path(f"/proc/{os.getpid()}/fd/{self._descriptor}")
                return
            try:
                self._loading_path.unlink(missing_ok=True)  # of a process that was killed while it loaded
                with self._lock:
                    os.link(self._data_path if self._data_path.exists() else self._part_path, self._loading_path)
            except OSError as error:
                raise store_error(self._folder, error) from None
            try:
                yield self._loading_path
            finally:
                self._loading_path.unlink(missing_ok=True)

    # ------------------------------------------------------------ inside

    @property
    def _loading_path(self) -> Path:
        return self._folder / f"{self.encoding_id}.loading"

    @property
    def _part_path(self) -> Path:
        return self._folder / f"{self.encoding_id}.part"

    @property
    def _data_path(self) -> Path:
        return self._folder / f"{self.encoding_id}.data"

    def _open(self, path: Path, flags: int) -> None:
        self._descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
        self._close = weakref.finalize(self, os.close, self._descriptor)

    def _have_all(self) -> None:
        for index in range(self.manifest.chunk_count):
            bitmap_add(self.have, index)

    def _require_state(self) -> None:
        if self.manifest.kind != "keyframe" or not self.complete:
            raise StoreError(f"{self!r} is not a complete keyframe")

    def _hash_until(self, until_bytes: int) -> PrefixHash:
        state_hash = self._hashed_prefix()
        state_hash.advance(until_bytes)
        return state_hash

    def _hashed_prefix(self) -> PrefixHash:
        try:
            if self._state_hash is None:
                self._state_hash = PrefixHash(self._descriptor, self.manifest.size_bytes)
        except OSError as error:
            raise store_error(self._folder, error) from None
        return self._state_hash

    def _rehash(self) -> None:
        hashes = self.chunk_list()
        for index in range(self.manifest.chunk_count):
            start, stop = self.manifest.chunk_range(index)
            try:
                check_chunk(hashes, index, os.pread(self._descriptor, stop - start, start))
            except CorruptChunk:
                continue
            bitmap_add(self.have, index)


def store_error(folder: Path, error: OSError) -> StoreError:
    """Turn an operating-system error about the store into one that a person can act on."""
    cause = str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        cause = f"disk full: {error.strerror}"
        fix = "free some space, keep fewer versions, or put the state folder on another disk"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        fix = "make the folder writable for this user"
    else:
        fix = "check the disk"
    return StoreError(f"cannot keep versions in {folder}", cause=cause, fix=fix)
