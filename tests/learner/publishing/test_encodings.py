from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from learner.publishing.encodings import cut_up, encode
from rollcast.policy.snapshot import Snapshot
from rollcast.runtime.errors import CheckpointError
from rollcast.wire.ids import EncodingId, Epoch, RunId, Version
from rollcast.wire.versions.chunks import chunk_list
from rollcast.wire.versions.delta import DeltaDecoder, InPlace
from rollcast.wire.versions.records import KEYFRAME_ID, PREVIOUS_ID, SQUASHED_ID, VersionRecord
from rollcast.wire.versions.state_hash import state_hash
from rollcast.wire.versions.tensors import TensorSpec, tensor_table

TENSORS = tensor_table([("weights", "float32", (50, 100)), ("bias", "float32", (100,))])
OLD = np.random.default_rng(0).bytes(20_400)
BASES = {PREVIOUS_ID: Version(4), SQUASHED_ID: Version(1)}


def changed(share: float) -> bytes:
    draw = np.random.default_rng(1)
    items = np.frombuffer(OLD, np.uint32).copy()
    items[draw.random(len(items)) < share] += 1
    return items.tobytes()


def holding(
    tensors: tuple[TensorSpec, ...] = TENSORS, damaged: int = -1
) -> Callable[[EncodingId, Version], tuple[VersionRecord, bytes]]:
    def state_of(_: EncodingId, version: Version) -> tuple[VersionRecord, bytes]:
        if version == damaged:
            raise CheckpointError("damaged")
        return VersionRecord(RunId("run"), Epoch(0), version, b"", state_hash(OLD), len(OLD), tensors, "{}"), OLD

    return state_of


def test_deltas_lead_from_their_bases_to_the_snapshot() -> None:
    snapshot = Snapshot(TENSORS, changed(0.02))
    digest, encodings = encode(snapshot, BASES, holding(), chunk_size_bytes=1024, keyframe_chunk_bytes=1024)
    assert digest == state_hash(snapshot.state_bytes)
    assert list(encodings) == [KEYFRAME_ID, PREVIOUS_ID, SQUASHED_ID]
    assert encodings[KEYFRAME_ID].data == snapshot.state_bytes
    for encoding_id, one in encodings.items():
        assert one.chunk_hashes == chunk_list(one.data, 1024)
        if encoding_id != KEYFRAME_ID:
            state = bytearray(OLD)
            decoder = DeltaDecoder(TENSORS, InPlace(state))
            decoder.feed(one.data)
            decoder.finish()
            assert state == snapshot.state_bytes


@pytest.mark.parametrize(
    ("snapshot", "state_of", "left"),
    [
        (Snapshot(TENSORS, np.random.default_rng(5).bytes(len(OLD))), holding(), []),
        (Snapshot(TENSORS, changed(0.02)), holding(tensor_table([("weights", "float32", (5100,))])), []),
        (Snapshot(TENSORS, changed(0.02)), holding(damaged=4), [SQUASHED_ID]),
    ],
    ids=["noise", "other tensors", "damaged base"],
)
def test_a_delta_that_is_not_worth_it_is_left_out(
    snapshot: Snapshot, state_of: Callable[[EncodingId, Version], tuple[VersionRecord, bytes]], left: list[int]
) -> None:
    _, encodings = encode(snapshot, BASES, state_of, chunk_size_bytes=0, keyframe_chunk_bytes=1 << 20)
    assert list(encodings) == [KEYFRAME_ID, *left]


def test_each_encoding_gets_chunks_of_its_size() -> None:
    assert cut_up(bytes(8 << 20), 0).chunk_size_bytes == 32 << 10
    assert cut_up(bytes(100_000), 0).chunk_size_bytes == 8 << 10
    assert cut_up(bytes(100_000), 2048).chunk_size_bytes == 2048
