"""Make a version's state from an older version's state and a delta, on disk or in memory.

The base is copied block by block while the delta still arrives, so that memory is needed for one block besides the
result: space for the new state is reserved before the first chunk arrives, and each block is hashed as it is written,
while it is in the processor's cache. A base in memory that nothing else reads is changed in place instead, so that a
state of any size is kept in memory once: by the delta from the version before while it arrives, if the result is
announced, since such a delta can be inverted, which is done if somebody reads the base before the end; by any other
delta once all of it is here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from rollcast.runtime.errors import CorruptChunk, MalformedMessage, StoreError
from rollcast.wire.limits import DELTA_BLOCK_BYTES
from rollcast.wire.versions.delta import DeltaDecoder, InPlace, StateBlocks
from rollcast.wire.versions.files import preallocate, write_all
from rollcast.wire.versions.records import PREVIOUS_ID
from rollcast.wire.versions.state_hash import StateHash
from rollcast.wire.versions.state_memory import StateMemory, fits_in_memory, memory_for
from rollcast.wire.versions.stored_encoding import StoredEncoding, store_error


class Materialisation:
    """One state that is being made, by one thread at a time.

    If the result is to be in memory and the base is there too, and nothing reads it, the base is changed into the
    result. It can be used until ``finish`` all the same: its next reader has the changes undone first, and then the
    rest waits for ``finish``. Otherwise the base is copied block by block, and cannot be pruned until ``close``.

    Args:
        base: the keyframe of the version that the delta starts from; its state is held.
        delta: the encoding whose chunks arrive.
        path: the file to make if the result is not in memory.
        in_memory: make the result in memory, unless it has to be copied and does not fit.
        memory_only: never make it on disk.
        before_change: called before bytes of the base up to the given offset are changed in place.

    Attributes:
        memory: the result, if it is in memory; it belongs to the caller once ``finish`` has returned.
        base_taken: whether the base was changed in place: its memory is the result's, or lost if ``finish`` raised.

    Raises:
        StoreError: the disk is full or read-only, or base and delta do not belong together.
    """

    def __init__(
        self,
        base: StoredEncoding,
        delta: StoredEncoding,
        path: Path,
        *,
        in_memory: bool = False,
        memory_only: bool = False,
        before_change: Callable[[int], None] = lambda until_bytes: None,
    ) -> None:
        record, old = delta.verified.record, base.verified.record
        if not base.state_held or delta.manifest.base_version != base.version:
            raise StoreError(f"{base!r} is not the base of {delta!r}")
        if old.tensors != record.tensors:
            raise StoreError(f"version {base.version} has other tensors than version {record.version}")
        self.delta = delta
        self.path = path
        self.memory: StateMemory | None = None
        self.base_taken = False
        self._base = base
        self._in_memory = in_memory
        self._memory_only = memory_only
        self._before_change = before_change
        self._hash = StateHash()
        self._made = False
        self._lease = ExitStack()
        self._pass: _Pass | None = None
        self._copies = False
        self._undoable = delta.encoding_id == PREVIOUS_ID
        if not (in_memory and base.in_memory):
            self._copy()

    def advance(self, budget_bytes: int, *, in_place: bool) -> bool:
        """Apply chunks that have arrived, in order, until about ``budget_bytes`` of the state have been made.

        Args:
            in_place: whether the base may be changed although chunks are missing.

        Returns:
            Whether anything was done; False once the delta has proved malformed, after which ``finish`` raises, and
            while the base is to be changed in place but is read, or was.

        Raises:
            StoreError: the disk refuses.
        """
        if self._copies:
            return self._pass is not None and self._pass.advance(budget_bytes)
        if not (self._undoable and (in_place or self.delta.complete)):
            return False
        with self._base.changed(self._undo) as memory:
            return memory is not None and self._in_place(memory).advance(budget_bytes)

    def finish(self, *, keep_base: bool = False) -> None:
        """Apply the rest and check the hash of the state.

        Args:
            keep_base: copy the base even where it could be changed in place.

        Raises:
            CorruptChunk: the result is not the state that the learner signed.
            StoreError: chunks are missing, or the disk refuses.
        """
        if not self.delta.complete:
            raise StoreError(f"{self.delta!r} cannot be applied")
        work = self._begin(keep_base)
        while work.advance(DELTA_BLOCK_BYTES):
            pass
        version = self.delta.version
        if refusal := work.refusal():
            raise _corrupt(version, refusal)
        if self._hash.digest() != self.delta.verified.record.state_hash:
            raise _corrupt(version, f"version {self._base.version} with it does not hash to the signed state")
        self._made = True

    @property
    def leaves(self) -> bytes:
        """Return the hashes of the leaves of the state that ``finish`` has made."""
        return self._hash.leaves

    def close(self) -> None:
        """Release the base as it was, and what was made in memory unless ``finish`` returned; a file stays."""
        self._lease.close()
        with suppress(StoreError):  # then the base is lost
            self._base.undo(self._undo)
        if self.memory is not None and not self._made:
            self.memory.close()

    def _begin(self, keep_base: bool) -> _Pass:
        """Return the pass that makes the result, which began in ``advance`` or begins now."""
        if self._copies and self._pass is not None:
            return self._pass
        self.memory = None if keep_base else self._base.take_memory(self._undo)
        if self.memory is None:
            return self._copy()
        self.base_taken = True
        return self._in_place(self.memory)

    def _in_place(self, memory: StateMemory) -> _Pass:
        if self._pass is None:
            self._pass = _Pass(self.delta, _MemoryBlocks(memory, self._hash, self._before_change))
        return self._pass

    def _undo(self, memory: StateMemory) -> None:
        """Make the base of what was changed in place, for a reader; the delta is applied by ``finish`` then.

        Raises:
            StoreError: the disk refuses, or the delta cannot be inverted.
        """
        changed, self._pass, self._hash, self._undoable = self._pass, None, StateHash(), False
        if changed is not None:
            changed.undo(InPlace(memory.view))

    def _copy(self) -> _Pass:
        """Begin a result that shares nothing with its base."""
        size_bytes = self.delta.verified.record.state_size_bytes
        try:
            if self._memory_only:
                self.memory = memory_for(size_bytes)
                descriptor = self.memory.descriptor
            elif self._in_memory and fits_in_memory(size_bytes):
                self.memory = StateMemory(size_bytes)
                descriptor = self.memory.descriptor
            else:
                descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
                self._lease.callback(os.close, descriptor)
                preallocate(descriptor, size_bytes)
            self._lease.enter_context(self._base.reader())
        except OSError as error:
            self._lease.close()
            raise store_error(self.delta.folder, error) from None
        self._copies = True
        self._pass = _Pass(self.delta, _CopiedBlocks(self._base, descriptor, self._hash))
        return self._pass


class _Pass:
    """One pass over the chunks of a delta, in order, as they arrive.

    Args:
        blocks: the state that the delta changes.
    """

    def __init__(self, delta: StoredEncoding, blocks: StateBlocks) -> None:
        self._delta = delta
        self._decoder = DeltaDecoder(delta.verified.record.tensors, blocks)
        self._next_chunk = 0
        self._refusal = ""  # the reason why the delta is malformed

    def advance(self, budget_bytes: int) -> bool:
        """Apply chunks that have arrived; see Materialisation.advance."""
        until, before = self._decoder.done_bytes + budget_bytes, self._next_chunk
        while not self._refusal and self._decoder.done_bytes < until and self._delta.has(self._next_chunk):
            self._apply(self._delta.read(self._next_chunk))
            self._next_chunk += 1
        return self._next_chunk > before

    def refusal(self) -> str:
        """Return why the chunks used so far are no delta between states of these tensors; empty if they are one."""
        try:
            self._decoder.finish()
        except MalformedMessage as error:
            return self._refusal or error.what
        return ""

    def undo(self, blocks: StateBlocks) -> None:
        """Make the old state of these blocks again.

        Raises:
            StoreError: the disk refuses, or a block has no inverse.
        """
        inverse = DeltaDecoder(self._delta.verified.record.tensors, blocks, inverse=True)
        with suppress(MalformedMessage):  # where it was refused before
            for index in range(self._next_chunk):
                inverse.feed(self._delta.read(index))
        if inverse.done_bytes != self._decoder.done_bytes:
            raise StoreError(f"{self._delta!r} cannot be inverted")

    def _apply(self, chunk: bytes) -> None:
        try:
            self._decoder.feed(chunk)
        except MalformedMessage as error:
            self._refusal = error.what
        except OSError as error:
            raise store_error(self._delta.folder, error) from None


class _MemoryBlocks:
    """Change the blocks of a state in memory and hash them; a rollcast.wire.versions.delta.StateBlocks."""

    def __init__(self, memory: StateMemory, state_hash: StateHash, before_change: Callable[[int], None]) -> None:
        self.size_bytes = memory.size_bytes
        self._view = memory.view
        self._before_change = before_change
        self._hash = state_hash

    def load(self, start: int, stop: int) -> memoryview:
        self._before_change(stop)
        return self._view[start:stop]

    def store(self, start: int, block: memoryview) -> None:
        self._hash.update(block)


class _CopiedBlocks:
    """Read the blocks of one file, write those of another and hash them; a rollcast.wire.versions.delta.StateBlocks."""

    def __init__(self, base: StoredEncoding, descriptor: int, state_hash: StateHash) -> None:
        self.size_bytes = base.manifest.size_bytes
        self._base = base
        self._descriptor = descriptor
        self._block = memoryview(bytearray(min(DELTA_BLOCK_BYTES, self.size_bytes)))
        self._hash = state_hash

    def load(self, start: int, stop: int) -> memoryview:
        block = self._block[: stop - start]
        self._base.read_state(block, start)
        return block

    def store(self, start: int, block: memoryview) -> None:
        write_all(self._descriptor, block, start)
        self._hash.update(block)


def _corrupt(version: int, cause: str) -> CorruptChunk:
    return CorruptChunk(
        f"a delta does not lead to version {version}",
        cause=cause,
        fix="the version is received another way; if this repeats, check the disk",
    )
