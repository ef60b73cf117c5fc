"""Measure how fast a state is made on disk from an older one and a delta, and the work left after the last chunk."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rollcast.wire.identity.identity import Identity
from rollcast.wire.ids import Epoch, RunId, Version
from rollcast.wire.versions.chunk_store import ChunkStore
from rollcast.wire.versions.chunks import chunk_list, chunk_size_for, cut
from rollcast.wire.versions.delta import encode_delta
from rollcast.wire.versions.records import (
    PREVIOUS_ID,
    Manifest,
    VerifiedVersion,
    VersionRecord,
    delta_manifest,
    keyframe_manifest,
    parse_announcement,
    sign_version,
    state_hash,
)
from rollcast.wire.versions.stored_encoding import StoredEncoding
from rollcast.wire.versions.tensors import TensorSpec

_IN_MEMORY = Path("/dev/shm")
_BUDGET_BYTES = 16 << 20


def rates(tensors: tuple[TensorSpec, ...], old: bytes, new: bytes) -> dict[str, float]:
    """Return the MB (10^6 bytes) of state a second of CPU time, all threads together.

    ``materialise_mb_s`` covers the work from the first chunk to the verified state; ``materialise_list_mb_s`` the chunk
    list that serving the state as a keyframe needs; ``materialise_left_share`` is the share of the time that falls
    after the last chunk when the others were applied as they arrived.
    """
    with tempfile.TemporaryDirectory(dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None) as name:
        store = ChunkStore(Path(name), 4)
        _receive(store, _signed(tensors, old, 0, b""), old, 0).verify_state()
        delta = b"".join(encode_delta(tensors, old, new))
        version = _signed(tensors, new, 1, delta)
        encoding = _receive(store, version, delta, 1, last=False)

        def while_it_arrives() -> None:
            store.prepare(encoding)
            while store.advance(_BUDGET_BYTES):
                pass

        def after_the_last_chunk() -> None:
            _write(encoding, delta, range(encoding.manifest.chunk_count - 1, encoding.manifest.chunk_count))
            store.materialise(encoding)

        before_s, left_s = _cpu_s(while_it_arrives), _cpu_s(after_the_last_chunk)
        keyframe = store.materialise(encoding)
        list_s = _cpu_s(keyframe.list_chunks)
        store.close()
    megabytes = len(new) / 1e6
    return {
        "materialise_mb_s": megabytes / (before_s + left_s),
        "materialise_left_share": left_s / (before_s + left_s),
        "materialise_list_mb_s": megabytes / list_s,
    }


def _signed(tensors: tuple[TensorSpec, ...], state: bytes, version: int, delta: bytes) -> VerifiedVersion:
    record = VersionRecord(
        RunId("bench"), Epoch(0), Version(version), b"", state_hash(state), len(state), tensors, "{}"
    )
    size = chunk_size_for(len(state))
    manifests = [keyframe_manifest(record, chunk_list(state, size), size)]
    if delta:
        size = chunk_size_for(len(delta))
        hashes, base = chunk_list(delta, size), Version(version - 1)
        manifests.append(
            delta_manifest(record, PREVIOUS_ID, base, size_bytes=len(delta), chunk_hashes=hashes, chunk_size_bytes=size)
        )
    return parse_announcement(sign_version(record, manifests, Identity.generate()))


def _receive(
    store: ChunkStore, version: VerifiedVersion, data: bytes, encoding_id: int, *, last: bool = True
) -> StoredEncoding:
    manifest = version.manifest(encoding_id)
    assert isinstance(manifest, Manifest)
    encoding = store.begin(version, manifest, chunk_list(data, manifest.chunk_size_bytes))
    _write(encoding, data, range(manifest.chunk_count if last else manifest.chunk_count - 1))
    return encoding


def _write(encoding: StoredEncoding, data: bytes, indices: range) -> None:
    ranges = list(cut(len(data), encoding.manifest.chunk_size_bytes))
    for index in indices:
        start, stop = ranges[index]
        encoding.write(index, memoryview(data)[start:stop])


def _cpu_s(work: Callable[[], object]) -> float:
    started_s = time.process_time()
    work()
    return time.process_time() - started_s
