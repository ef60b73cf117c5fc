"""Make signed versions, and stores that hold them, for tests."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from rollcast.wire.identity.identity import Identity
from rollcast.wire.ids import Epoch, RunId, Version
from rollcast.wire.versions.chunk_store import ChunkStore, StoredEncoding
from rollcast.wire.versions.chunks import chunk_list, cut
from rollcast.wire.versions.delta import encode_delta
from rollcast.wire.versions.records import (
    PREVIOUS_ID,
    BaseRef,
    VerifiedVersion,
    VersionRecord,
    delta_manifest,
    keyframe_manifest,
    sign_version,
    verify_announcement,
)
from rollcast.wire.versions.state_hash import state_hash
from rollcast.wire.versions.tensors import tensor_table

RUN_ID = RunId("test-run")
CHUNK = 1024
IDENTITY = Identity.generate()


def a_state(size_bytes: int = 10 * CHUNK + 100, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size_bytes)


def a_record(state: bytes, version: int = 1, run_id: RunId = RUN_ID) -> VersionRecord:
    return VersionRecord(
        run_id=run_id,
        epoch=Epoch(0),
        version=Version(version),
        parent_hash=b"",
        state_hash=state_hash(state),
        state_size_bytes=len(state),
        tensors=tensor_table([("layers/0.weight", "uint8", (len(state) - 4,)), ("head", "float32", ())]),
        model_json="{}",
    )


def a_version(
    state: bytes,
    identity: Identity,
    version: int = 1,
    *,
    chunk_size_bytes: int = CHUNK,
    base: VerifiedVersion | None = None,
) -> tuple[VerifiedVersion, bytes]:
    """Return a version as a receiver sees it, and its chunk list."""
    record, base_announcement = a_record(state, version), None
    if base is not None:
        record = replace(record, base=BaseRef(base.version, base.record.state_hash))
        base_announcement = base.announcement
    hashes = chunk_list(state, chunk_size_bytes)
    manifest = keyframe_manifest(record, hashes, chunk_size_bytes)
    announcement = sign_version(record, [manifest], identity, base=base_announcement)
    return verify_announcement(announcement, run_id=RUN_ID, learner_public_key=identity.public_key), hashes


def a_contradiction(state: bytes) -> tuple[VerifiedVersion, bytes]:
    """Return a version whose record names another state hash than that of the chunks it lists, and the list."""
    record, hashes = replace(a_record(state), state_hash=bytes(32)), chunk_list(state, CHUNK)
    announcement = sign_version(record, [keyframe_manifest(record, hashes, CHUNK)], IDENTITY)
    return verify_announcement(announcement, run_id=RUN_ID, learner_public_key=IDENTITY.public_key), hashes


def begin(store: ChunkStore, state: bytes, version: int = 1, *, base: VerifiedVersion | None = None) -> StoredEncoding:
    verified, hashes = a_version(state, IDENTITY, version, base=base)
    return store.begin(verified, verified.keyframe, hashes)


def fill(encoding: StoredEncoding, state: bytes) -> None:
    for index, (start, stop) in enumerate(cut(len(state), CHUNK)):
        encoding.write(index, state[start:stop])


def put(store: ChunkStore, version: int, *, base: VerifiedVersion | None = None) -> StoredEncoding:
    encoding = begin(store, a_state(seed=version), version, base=base)
    fill(encoding, a_state(seed=version))
    encoding.verify_state()
    encoding.finish()
    return encoding


@dataclass(frozen=True)
class Step:
    """A version, and its delta from the previous version."""

    verified: VerifiedVersion
    state: bytes
    keyframe_list: bytes
    delta: bytes


def changed(state: bytes, seed: int, share: float = 0.02) -> bytes:
    """Return the state with some bytes changed."""
    draw = random.Random(seed)
    data = bytearray(state)
    for _ in range(max(1, int(share * len(data)))):
        data[draw.randrange(len(data))] ^= draw.randrange(1, 256)
    return bytes(data)


def a_step(old: bytes, new: bytes, version: int, *, delta: bytes | None = None) -> Step:
    """Return version ``version`` with the state ``new``, and a delta from version - 1 with the state ``old``."""
    record = a_record(new, version)
    if delta is None:
        delta = b"".join(encode_delta(record.tensors, old, new))
    hashes, delta_hashes = chunk_list(new, CHUNK), chunk_list(delta, CHUNK)
    manifests = [
        keyframe_manifest(record, hashes, CHUNK),
        delta_manifest(
            record,
            PREVIOUS_ID,
            Version(version - 1),
            size_bytes=len(delta),
            chunk_hashes=delta_hashes,
            chunk_size_bytes=CHUNK,
        ),
    ]
    announcement = sign_version(record, manifests, IDENTITY)
    verified = verify_announcement(announcement, run_id=RUN_ID, learner_public_key=IDENTITY.public_key)
    return Step(verified, new, hashes, delta)


def begin_delta(store: ChunkStore, step: Step) -> StoredEncoding:
    (manifest,) = step.verified.deltas
    return store.begin(step.verified, manifest, chunk_list(step.delta, CHUNK))


def put_delta(store: ChunkStore, step: Step) -> StoredEncoding:
    encoding = begin_delta(store, step)
    fill(encoding, step.delta)
    encoding.finish()
    return encoding
