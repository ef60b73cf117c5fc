"""Signed versions, and stores that hold them, for tests."""

from __future__ import annotations

import random

from rollcast.wire.chunk_store import ChunkStore, StoredEncoding
from rollcast.wire.chunks import chunk_list, cut
from rollcast.wire.identity import Identity
from rollcast.wire.ids import Epoch, RunId, Version
from rollcast.wire.records import (
    VerifiedVersion,
    VersionRecord,
    keyframe_manifest,
    sign_version,
    state_hash,
    verify_announcement,
)
from rollcast.wire.tensors import tensor_table

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
    state: bytes, identity: Identity, version: int = 1, *, chunk_size_bytes: int = CHUNK
) -> tuple[VerifiedVersion, bytes]:
    """A version as a receiver sees it, and its chunk list."""
    record = a_record(state, version)
    hashes = chunk_list(state, chunk_size_bytes)
    announcement = sign_version(record, [keyframe_manifest(record, hashes, chunk_size_bytes)], identity)
    return verify_announcement(announcement, run_id=RUN_ID, learner_public_key=identity.public_key), hashes


def begin(store: ChunkStore, state: bytes, version: int = 1) -> StoredEncoding:
    verified, hashes = a_version(state, IDENTITY, version)
    return store.begin(verified, verified.keyframe, hashes)


def fill(encoding: StoredEncoding, state: bytes) -> None:
    for index, (start, stop) in enumerate(cut(len(state), CHUNK)):
        encoding.write(index, state[start:stop])


def put(store: ChunkStore, version: int) -> StoredEncoding:
    encoding = begin(store, a_state(seed=version), version)
    fill(encoding, a_state(seed=version))
    encoding.verify_state()
    encoding.finish()
    return encoding
