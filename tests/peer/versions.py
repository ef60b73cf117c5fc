"""Signed versions of a few bytes, and how to have one in a store."""

from __future__ import annotations

from rollcast.wire.chunk_store import ChunkStore
from rollcast.wire.chunks import chunk_list
from rollcast.wire.identity import Identity
from rollcast.wire.ids import Epoch, RunId, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.records import (
    VersionRecord,
    keyframe_manifest,
    parse_announcement,
    sign_version,
    state_hash,
)
from rollcast.wire.tensors import tensor_table

RUN_ID = RunId("run-1")
LEARNER = Identity.generate()
CHUNK_SIZE_BYTES = 4096
STATE_SIZE_BYTES = 10 * CHUNK_SIZE_BYTES + 17


def version_record(version: int) -> tuple[VersionRecord, bytes]:
    text = f"weights of version {version} ".encode()
    state = (text * (STATE_SIZE_BYTES // len(text) + 1))[:STATE_SIZE_BYTES]
    record = VersionRecord(
        run_id=RUN_ID,
        epoch=Epoch(0),
        version=Version(version),
        parent_hash=b"",
        state_hash=state_hash(state),
        state_size_bytes=len(state),
        tensors=tensor_table([("weights", "uint8", (len(state),))]),
        model_json="{}",
    )
    return record, state


def announcement_of(version: int, identity: Identity = LEARNER) -> pb.VersionAnnouncement:
    record, state = version_record(version)
    manifest = keyframe_manifest(record, chunk_list(state, CHUNK_SIZE_BYTES), CHUNK_SIZE_BYTES)
    return sign_version(record, [manifest], identity)


def stored_version(store: ChunkStore, version: int) -> None:
    """Put a complete, durable version into ``store``."""
    _, state = version_record(version)
    verified = parse_announcement(announcement_of(version))
    encoding = store.begin(verified, verified.keyframe, chunk_list(state, CHUNK_SIZE_BYTES))
    for index in range(encoding.manifest.chunk_count):
        start, stop = encoding.manifest.chunk_range(index)
        encoding.write(index, state[start:stop])
    encoding.finish()
