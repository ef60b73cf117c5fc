"""Make signed versions of a few bytes, and put them into a store."""

from __future__ import annotations

import random
from dataclasses import replace

from rollcast.wire.identity.identity import Identity
from rollcast.wire.ids import EncodingId, Epoch, RunId, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.chunk_store import ChunkStore
from rollcast.wire.versions.chunks import chunk_list
from rollcast.wire.versions.delta import encode_delta
from rollcast.wire.versions.records import (
    KEYFRAME_ID,
    PREVIOUS_ID,
    BaseRef,
    VersionRecord,
    delta_manifest,
    keyframe_manifest,
    parse_announcement,
    sign_version,
)
from rollcast.wire.versions.state_hash import state_hash
from rollcast.wire.versions.tensors import tensor_table

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


CHUNK_BYTES = 1024
CHUNKS = 40
_STATE_BYTES = CHUNK_BYTES * (CHUNKS - 1) + 100


class Published:
    """A signed version of random bytes.

    Args:
        base: the version before, for a delta from it besides the keyframe; None: no delta.
        broken: whether the delta leads to other bytes than those that are signed.
        over: the version to which this one is adapters; None: it is whole.
    """

    def __init__(
        self,
        run_id: RunId,
        learner: Identity,
        version: int,
        base: Published | None = None,
        *,
        broken: bool = False,
        over: Published | None = None,
    ) -> None:
        draw = random.Random(version)
        self.version = Version(version)
        self.over = over
        self.state = draw.randbytes(_STATE_BYTES)
        if base is not None:
            self.state = base.state[:5000] + draw.randbytes(3000) + base.state[8000:]
        tensors = tensor_table([("w", "uint8", (_STATE_BYTES,))])
        self.record = VersionRecord(
            run_id, Epoch(0), self.version, b"", state_hash(self.state), _STATE_BYTES, tensors, "{}"
        )
        if over is not None:
            self.record = replace(self.record, base=BaseRef(over.version, over.record.state_hash))
        self.encodings = {KEYFRAME_ID: self.state}
        if base is not None:
            leads_to = self.state[:-1] + bytes([self.state[-1] ^ 1]) if broken else self.state
            self.encodings[PREVIOUS_ID] = b"".join(encode_delta(tensors, base.state, leads_to))
        self.chunk_lists = {one: chunk_list(data, CHUNK_BYTES) for one, data in self.encodings.items()}
        manifests = [keyframe_manifest(self.record, self.chunk_lists[KEYFRAME_ID], CHUNK_BYTES)]
        if base is not None:
            manifests.append(
                delta_manifest(
                    self.record,
                    PREVIOUS_ID,
                    base.version,
                    size_bytes=len(self.encodings[PREVIOUS_ID]),
                    chunk_hashes=self.chunk_lists[PREVIOUS_ID],
                    chunk_size_bytes=CHUNK_BYTES,
                )
            )
        over_announcement = None if over is None else over.announcement
        self.announcement = sign_version(self.record, manifests, learner, base=over_announcement)
        self.verified = parse_announcement(self.announcement)

    def chunk(self, index: int, encoding_id: EncodingId = KEYFRAME_ID) -> bytes:
        return self.encodings[encoding_id][index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES]

    def put(self, store: ChunkStore, encoding_id: EncodingId = KEYFRAME_ID) -> None:
        """Store it as an earlier process would have."""
        manifest = self.verified.manifest(encoding_id)
        assert manifest is not None
        encoding = store.begin(self.verified, manifest, self.chunk_lists[encoding_id])
        for index in range(manifest.chunk_count):
            encoding.write(index, self.chunk(index, encoding_id))
        encoding.finish()
