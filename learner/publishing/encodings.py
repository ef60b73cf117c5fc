"""Encode a version: as a keyframe, and as deltas from older versions where these are short enough."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import structlog

from learner.publishing.growth import Progress, Wait, unheeded
from learner.publishing.mapped_files import STRETCH_BYTES, chunk_hashes_of, give_back, hash_of
from rollcast.policy.snapshot import Snapshot
from rollcast.runtime.errors import CheckpointError
from rollcast.wire.ids import EncodingId, Version
from rollcast.wire.limits import DELTA_BLOCK_BYTES
from rollcast.wire.versions.chunks import BytesLike, chunk_list_hash, chunk_size_for
from rollcast.wire.versions.delta import encode_delta
from rollcast.wire.versions.parallel import threads_for_a_pass
from rollcast.wire.versions.records import KEYFRAME_ID, PREVIOUS_ID, VersionRecord
from rollcast.wire.versions.state_hash import LEAF_BYTES

DELTA_SHARE_MAX = 0.5
"""Largest size of a delta as a share of the keyframe; a longer one saves too little to depend on an older version."""

_BLOCKS_A_STRETCH = STRETCH_BYTES // DELTA_BLOCK_BYTES

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Encoded:
    """The bytes of one encoding, and how they are cut into chunks."""

    data: BytesLike
    chunk_size_bytes: int
    chunk_hashes: bytes  # 32 bytes per chunk


def cut_up(data: BytesLike, chunk_size_bytes: int, wait: Wait = unheeded) -> Encoded:
    """Hash the chunks of an encoding; a chunk size of 0 is replaced by one that suits its size."""
    size = chunk_size_bytes or chunk_size_for(len(data))
    return Encoded(data, size, chunk_hashes_of(data, size, wait))


def encode(
    snapshot: Snapshot,
    bases: Mapping[EncodingId, Version],
    state_of: Callable[[EncodingId, Version], tuple[VersionRecord, BytesLike]],
    *,
    chunk_size_bytes: int,
    keyframe_chunk_bytes: int,
    wait: Wait = unheeded,
    passed: Progress = unheeded,
) -> tuple[bytes, dict[EncodingId, Encoded]]:
    """Return the hash of a snapshot, its keyframe and its deltas, all of which are made at the same time.

    A delta that is too long, or whose base is damaged, is left out.

    Args:
        bases: the version that each delta starts from.
        state_of: returns the learner's own copy of the version that a delta starts from; it may raise CheckpointError.
        chunk_size_bytes: chunk size of all deltas; 0: each gets one that suits its size.
        keyframe_chunk_bytes: chunk size of the keyframe.
        wait: waits until bytes of the snapshot are written.
        passed: called with offsets below which the delta from the version before reads neither state any more.
    """

    def delta(encoding_id: EncodingId, base: Version) -> Encoded | None:
        # Older states are made of newer ones by the deltas between them (learner.publishing.lineage).
        is_previous = encoding_id == PREVIOUS_ID
        heed = passed if is_previous else unheeded
        try:
            record, old = state_of(encoding_id, base)
            data = _delta(record, old, snapshot, wait, heed, invertible=is_previous)
        except CheckpointError as error:
            _log.warning("no delta from a version that cannot be read", base=base, reason=str(error))
            return None
        finally:
            heed(len(snapshot.state_bytes))  # also where no delta is made
        return None if data is None else cut_up(data, chunk_size_bytes)

    state = snapshot.state_bytes
    with ThreadPoolExecutor(2 + len(bases), thread_name_prefix="encode") as pool:
        cutting = pool.submit(cut_up, state, keyframe_chunk_bytes, wait)
        hashing = None if keyframe_chunk_bytes == LEAF_BYTES else pool.submit(hash_of, state, wait)
        deltas = dict(zip(bases, pool.map(delta, bases, bases.values()), strict=True))
        worth_it = {encoding_id: one for encoding_id, one in deltas.items() if one is not None}
        keyframe = cutting.result()
        digest = chunk_list_hash(keyframe.chunk_hashes) if hashing is None else hashing.result()
        return digest, {KEYFRAME_ID: keyframe} | worth_it


def _delta(
    record: VersionRecord, old: BytesLike, snapshot: Snapshot, wait: Wait, passed: Progress, *, invertible: bool
) -> bytearray | None:
    if record.tensors != snapshot.tensors:
        return None
    most_bytes = int(DELTA_SHARE_MAX * len(snapshot.state_bytes))
    delta, new = bytearray(), snapshot.state_bytes
    pieces = encode_delta(
        snapshot.tensors,
        old,
        new,
        invertible=invertible,
        before_reading=wait,
        after_reading=passed,
        threads=threads_for_a_pass(),
    )
    for block, piece in enumerate(pieces):
        if len(delta) + len(piece) > most_bytes:
            return None
        delta += piece
        if block % _BLOCKS_A_STRETCH == 0:
            give_back(old)
            give_back(new)
    return delta
