"""Keep a version that the learner sends before it has signed it in a file, from which the store takes what matches."""

from __future__ import annotations

import os
from pathlib import Path

import structlog
from blake3 import blake3

from rollcast.wire.ids import Version
from rollcast.wire.versions.chunks import HASH_BYTES, BytesLike
from rollcast.wire.versions.files import write_all
from rollcast.wire.versions.records import Manifest
from rollcast.wire.versions.state_hash import LEAF_BYTES, StateHash
from rollcast.wire.versions.stored_encoding import Draft

log = structlog.get_logger()


class DraftFile:
    """The chunks of a draft, in order, with their hashes. Its methods block on the disk, and one thread calls them.

    If the disk refuses, the draft is lost, and the version is received after its announcement.

    Args:
        path: the file, on the disk of the store; one that exists is overwritten.
        chunk_size_bytes: the size of all chunks but the last.
    """

    def __init__(self, path: Path, version: Version, chunk_size_bytes: int) -> None:
        self.version = version
        self._path = path
        self._chunk_size_bytes = chunk_size_bytes
        self._hashes = bytearray()
        self._size_bytes = 0
        # Of chunks that are the leaves of the state hash the store needs no other hash.
        self._state_hash = None if chunk_size_bytes == LEAF_BYTES else StateHash()
        self._descriptor = -1
        self._lost = False

    def append(self, chunk: BytesLike) -> None:
        """Hash a chunk and write it to the end of the file."""
        if self._lost:
            return
        try:
            if self._descriptor < 0:
                self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            write_all(self._descriptor, chunk, self._size_bytes)
        except OSError as error:
            log.warning("draft of a version lost, it is received again", version=self.version, reason=str(error))
            self.discard()
            return
        self._size_bytes += len(chunk)
        self._hashes += blake3(chunk, max_threads=1).digest()
        if self._state_hash is not None:
            self._state_hash.update(chunk)

    def take(self, manifest: Manifest, chunk_list: bytes) -> Draft | None:
        """Return what the store can use of the file, which is the store's from now on; None, and delete it, if nothing.

        Args:
            chunk_list: the signed hashes of the manifest's chunks.
        """
        came = len(self._hashes) // HASH_BYTES
        right_size = self._chunk_size_bytes == manifest.chunk_size_bytes or came == manifest.chunk_count == 1
        matching = _matching(self._hashes, chunk_list) if right_size else 0
        if self._lost or not matching:
            self.discard()
            return None
        self._close()
        return Draft(self._path, matching, self._state_hash if matching == came else None)

    def discard(self) -> None:
        """Delete the file."""
        self._lost = True
        self._close()
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("draft of a version cannot be deleted", version=self.version, reason=str(error))

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _matching(hashes: bytes | bytearray, chunk_list: bytes) -> int:
    """Return how many chunks, from the first on, have the hashes of the list."""
    for start in range(0, len(hashes), HASH_BYTES):
        if hashes[start : start + HASH_BYTES] != chunk_list[start : start + HASH_BYTES]:
            return start // HASH_BYTES
    return len(hashes) // HASH_BYTES
