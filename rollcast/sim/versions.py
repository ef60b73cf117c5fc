"""Make the versions of a simulated learner: states that follow from what was trained, signed as real ones are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rollcast.wire.identity.identity import Identity
from rollcast.wire.ids import Epoch, RunId, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.chunks import chunk_list
from rollcast.wire.versions.records import (
    VerifiedVersion,
    VersionRecord,
    keyframe_manifest,
    parse_announcement,
    sign_version,
)
from rollcast.wire.versions.state_hash import state_hash
from rollcast.wire.versions.tensors import tensor_table

RUN_ID = RunId("simulated")
CHUNK_BYTES = 1024  # real bytes of a chunk; the simulated network counts the size of the settings instead


def first_state(seed: int) -> bytes:
    """Return the learner's state before its first step."""
    return blake3(f"rollcast/sim/state/{seed}".encode()).digest()


def next_state(state: bytes, rollouts: Sequence[tuple[int, float]], hardware: int) -> bytes:
    """Return the state after a step on these pairs (rollout id, reward); other hardware gives another state."""
    return blake3(state + repr((rollouts, hardware)).encode()).digest()


@dataclass(frozen=True, slots=True)
class Published:
    """A signed version and its bytes."""

    verified: VerifiedVersion
    data: bytes
    chunk_hashes: bytes


class Signer:
    """A signer of versions whose key follows from the seed, so that the same run signs the same bytes."""

    def __init__(self, seed: int, *, chunks: int) -> None:
        key = blake3(f"rollcast/sim/key/{seed}".encode()).digest()
        self._identity = Identity(Ed25519PrivateKey.from_private_bytes(key))
        self._size_bytes = chunks * CHUNK_BYTES
        self._tensors = tensor_table([("weights", "uint8", (self._size_bytes,))])
        self._parsed: dict[bytes, VerifiedVersion] = {}

    def state_hash(self, state: bytes) -> bytes:
        """Return the state hash that the record of a version of this state holds."""
        return state_hash(blake3(state).digest(length=self._size_bytes))

    def sign(self, epoch: Epoch, version: Version, state: bytes) -> Published:
        """Return the signed version of a state."""
        data = blake3(state).digest(length=self._size_bytes)
        record = VersionRecord(RUN_ID, epoch, version, b"", state_hash(data), len(data), self._tensors, "{}")
        hashes = chunk_list(data, CHUNK_BYTES)
        announcement = sign_version(record, [keyframe_manifest(record, hashes, CHUNK_BYTES)], self._identity)
        return Published(parse_announcement(announcement), data, hashes)

    def parsed(self, announcement: bytes) -> VerifiedVersion:
        """Return an announcement as receivers parse it; cached, because every peer receives the same one."""
        found = self._parsed.get(announcement)
        if found is None:
            found = self._parsed[announcement] = parse_announcement(pb.VersionAnnouncement.FromString(announcement))
            if len(self._parsed) > 64:
                del self._parsed[next(iter(self._parsed))]
        return found
