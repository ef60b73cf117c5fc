"""Measure how fast a state is made from an older one and a delta, on disk and in memory, and what that writes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

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
)
from rollcast.wire.versions.state_hash import state_hash
from rollcast.wire.versions.stored_encoding import StoredEncoding
from rollcast.wire.versions.tensors import TensorSpec, tensor_table

_IN_MEMORY = Path("/dev/shm")
_BUDGET_BYTES = 16 << 20
# Large enough that the few pages of announcement and lists do not count beside the delta, as in a real run.
_WRITTEN_STATE_BYTES = 16 << 20
_WRITTEN_SHARE = 0.05


def rates(tensors: tuple[TensorSpec, ...], old: bytes, new: bytes) -> dict[str, float]:
    """Return the MB (10^6 bytes) of state a second of CPU time, all threads together.

    ``materialise_mb_s`` covers the work from the first chunk to the verified state; ``materialise_list_mb_s`` the chunk
    list that serving the state as a keyframe needs; ``in_memory_mb_s`` all work after the last chunk if the base is in
    memory and changed in place; ``materialise_left_share`` is the share of the time that falls
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
    memory_s = _in_memory_s(tensors, old, new)
    return {
        "in_memory_mb_s": megabytes / memory_s,
        "materialise_mb_s": megabytes / (before_s + left_s),
        "materialise_left_share": left_s / (before_s + left_s),
        "materialise_list_mb_s": megabytes / list_s,
    }


def _in_memory_s(tensors: tuple[TensorSpec, ...], old: bytes, new: bytes) -> float:
    """Return the seconds of CPU time in which a state in memory is changed into the next one and verified."""
    with _a_store(tensors, old) as store:
        _step(store, tensors, old, new, 1)
        return _step(store, tensors, new, old, 2)


def written_ratio(size_bytes: int = _WRITTEN_STATE_BYTES, share: float = _WRITTEN_SHARE) -> float:
    """Return bytes written to disk / bytes of deltas, from the first step to the end of the first copy of a state.

    The kernel counts what it will write back (write_bytes of /proc/self/io), so the store is on a disk.

    Args:
        size_bytes: size of the state: one tensor of bf16 values.
        share: share of the values that change in each step, by one unit in the last place.
    """
    rng = np.random.default_rng(0)
    values = rng.integers(0, 1 << 16, size_bytes // 2, np.uint16)
    tensors = tensor_table([("weights", "bfloat16", values.shape)])
    delta_bytes = 0
    with _a_store(tensors, values.tobytes(), on_disk=True) as store:
        before, version = written_bytes(), 0
        while version == 0 or not (store.folder / f"{version}" / "0.data").exists():
            old, version = values.tobytes(), version + 1
            values[rng.random(len(values)) < share] += 1
            _step(store, tensors, old, values.tobytes(), version)
            delta = store.get(version, PREVIOUS_ID)
            assert delta is not None
            delta_bytes += delta.manifest.size_bytes
            while store.advance(_BUDGET_BYTES):
                pass
            store.prune()
        return (written_bytes() - before) / delta_bytes


@contextmanager
def _a_store(tensors: tuple[TensorSpec, ...], state: bytes, *, on_disk: bool = False) -> Iterator[ChunkStore]:
    """Open a store that makes states in memory and holds version 0."""
    folder = _IN_MEMORY if _IN_MEMORY.is_dir() and not on_disk else None
    with tempfile.TemporaryDirectory(dir=folder) as name:
        store = ChunkStore(Path(name), 2, in_memory=True)
        keyframe = _receive(store, _signed(tensors, state, 0, b""), state, 0)
        keyframe.verify_state()
        keyframe.finish()
        yield store
        store.close()


def _step(store: ChunkStore, tensors: tuple[TensorSpec, ...], old: bytes, new: bytes, version: int) -> float:
    """Receive a delta and make its state; returns the seconds of CPU time of the latter."""
    delta = b"".join(encode_delta(tensors, old, new))
    encoding = _receive(store, _signed(tensors, new, version, delta), delta, 1)
    encoding.finish()
    return _cpu_s(lambda: store.materialise(encoding))


def written_bytes() -> int:
    """Return the bytes that this process has made the kernel write to disks."""
    counters = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counters["write_bytes"])


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
