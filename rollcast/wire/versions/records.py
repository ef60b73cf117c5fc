"""Define version records and manifests: the learner signs them for each version, and receivers check them.

A version is its state: the raw tensors one after the other, in the order of the record. The record describes the state;
each manifest describes how one encoding of it is cut into chunks. Only the learner's key signs either.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from google.protobuf.message import DecodeError, Message

from rollcast.runtime.errors import MalformedMessage
from rollcast.wire import limits
from rollcast.wire.checks import require
from rollcast.wire.identity.identity import Identity, verify_signed
from rollcast.wire.ids import EncodingId, Epoch, RunId, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.chunks import HASH_BYTES, blake3_hash, chunk_count, chunk_list_hash
from rollcast.wire.versions.delta import delta_bytes_max
from rollcast.wire.versions.tensors import TensorSpec, tensors_from_pb

RECORD_DOMAIN = "rollcast/version-record/1"
MANIFEST_DOMAIN = "rollcast/manifest/1"
KEYFRAME_ID = EncodingId(0)
PREVIOUS_ID = EncodingId(1)  # the delta from the version published before
SQUASHED_ID = EncodingId(2)  # the delta from some publications before that, for peers that were disconnected

EncodingKind = Literal["keyframe", "delta"]
Compression = Literal["", "zstd"]
MessageT = TypeVar("MessageT", bound=Message)

_KIND_TO_PB: dict[EncodingKind, pb.EncodingKind] = {"keyframe": pb.KEYFRAME, "delta": pb.DELTA}
_KIND_FROM_PB: dict[int, EncodingKind] = {value: kind for kind, value in _KIND_TO_PB.items()}
_COMPRESSIONS: dict[str, Compression] = {"": "", "zstd": "zstd"}


@dataclass(frozen=True, slots=True)
class BaseRef:
    """The older version whose state a version of adapters completes.

    It has nothing to do with the version that a delta starts from (``Manifest.base_version``): adapters travel as
    keyframes and deltas like any state.
    """

    version: Version
    state_hash: bytes  # of that version's state: rollcast.wire.versions.state_hash


@dataclass(frozen=True, slots=True)
class VersionRecord:
    """The description of a version, whatever encoding it travels in."""

    run_id: RunId
    epoch: Epoch
    version: Version
    parent_hash: bytes  # hash of the parent's record; empty for the first version
    state_hash: bytes
    state_size_bytes: int
    tensors: tuple[TensorSpec, ...]
    model_json: str  # rollcast.policy.config.ModelConfig
    base: BaseRef | None = None  # None: the state is whole; otherwise it holds adapters over this version's state

    def payload(self) -> bytes:
        """Return the bytes that are signed."""
        return record_to_pb(self).SerializeToString(deterministic=True)

    def hash(self) -> bytes:
        """Return the BLAKE3 hash of the payload, to which manifests and the next version refer."""
        return blake3_hash(self.payload())


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description of how one encoding of a version is cut into chunks."""

    run_id: RunId
    epoch: Epoch
    version: Version
    encoding_id: EncodingId
    kind: EncodingKind
    base_version: Version | None  # deltas only
    compression: Compression
    record_hash: bytes
    size_bytes: int  # encoded
    chunk_size_bytes: int
    chunk_count: int
    chunk_list_hash: bytes

    def chunk_range(self, index: int) -> tuple[int, int]:
        """Return (start, stop) of a chunk, in bytes.

        Raises:
            MalformedMessage: the encoding has no such chunk.
        """
        if not 0 <= index < self.chunk_count:
            raise MalformedMessage(f"chunk {index} of {self.chunk_count}")
        start = index * self.chunk_size_bytes
        return start, min(start + self.chunk_size_bytes, self.size_bytes)

    def check_chunk_list(self, hashes: bytes) -> None:
        """Check that ``hashes`` is the signed chunk list of this encoding.

        Raises:
            MalformedMessage: ``hashes`` is another list.
        """
        if len(hashes) != self.chunk_count * HASH_BYTES or chunk_list_hash(hashes) != self.chunk_list_hash:
            raise MalformedMessage(f"a chunk list is not the signed one of version {self.version}")


@dataclass(frozen=True, slots=True)
class VerifiedVersion:
    """An announcement whose signatures and bounds have been checked."""

    record: VersionRecord
    manifests: tuple[Manifest, ...]
    record_hash: bytes
    announcement: pb.VersionAnnouncement
    base: VerifiedVersion | None = None  # the version that the record's base names

    @property
    def version(self) -> Version:
        """Return the record's version."""
        return self.record.version

    @property
    def whole(self) -> VersionRecord:
        """Return the record of the whole weights: the base's if this version is adapters."""
        return self.record if self.base is None else self.base.record

    @property
    def keyframe(self) -> Manifest:
        """Return the encoding that needs no other version; every version has one."""
        return next(manifest for manifest in self.manifests if manifest.kind == "keyframe")

    @property
    def chunk_count_max(self) -> int:
        """Return the number of chunks of the encoding that has the most."""
        return max(manifest.chunk_count for manifest in self.manifests)

    @property
    def deltas(self) -> tuple[Manifest, ...]:
        """Return the encodings that lead to this version from an older one."""
        return tuple(manifest for manifest in self.manifests if manifest.kind == "delta")

    def manifest(self, encoding_id: int) -> Manifest | None:
        """Return the manifest of one encoding, or None if the version has no such encoding."""
        return next((manifest for manifest in self.manifests if manifest.encoding_id == encoding_id), None)


def keyframe_manifest(record: VersionRecord, chunk_hashes: bytes, chunk_size_bytes: int) -> Manifest:
    """Return the manifest of the uncompressed keyframe.

    Args:
        record: the record of the version.
        chunk_hashes: ``chunks.chunk_list`` of the state, 32 bytes a chunk.
        chunk_size_bytes: the size of the chunks that the state was cut into.
    """
    size_bytes = record.state_size_bytes
    return _manifest(record, KEYFRAME_ID, None, size_bytes, chunk_hashes, chunk_size_bytes)


def delta_manifest(
    record: VersionRecord,
    encoding_id: EncodingId,
    base: Version,
    *,
    size_bytes: int,
    chunk_hashes: bytes,
    chunk_size_bytes: int,
) -> Manifest:
    """Return the manifest of a delta.

    Args:
        record: the record of the version that the delta leads to.
        encoding_id: the id of the encoding, unique within the version and not 0.
        base: the version that the delta starts from.
        size_bytes: the size of the delta.
        chunk_hashes: ``chunks.chunk_list`` of the delta, 32 bytes a chunk.
        chunk_size_bytes: the size of the chunks that the delta was cut into.
    """
    return _manifest(record, encoding_id, base, size_bytes, chunk_hashes, chunk_size_bytes)


def _manifest(
    record: VersionRecord,
    encoding_id: EncodingId,
    base: Version | None,
    size_bytes: int,
    chunk_hashes: bytes,
    chunk_size_bytes: int,
) -> Manifest:
    return Manifest(
        run_id=record.run_id,
        epoch=record.epoch,
        version=record.version,
        encoding_id=encoding_id,
        kind="keyframe" if base is None else "delta",
        base_version=base,
        compression="" if base is None else "zstd",
        record_hash=record.hash(),
        size_bytes=size_bytes,
        chunk_size_bytes=chunk_size_bytes,
        chunk_count=chunk_count(size_bytes, chunk_size_bytes),
        chunk_list_hash=chunk_list_hash(chunk_hashes),
    )


def sign_version(
    record: VersionRecord,
    manifests: Iterable[Manifest],
    identity: Identity,
    *,
    base: pb.VersionAnnouncement | None = None,
) -> pb.VersionAnnouncement:
    """Sign a record and its manifests.

    Args:
        base: the announcement of the version that ``record.base`` names; None if it names none.

    Raises:
        MalformedMessage: receivers would reject them.
    """
    announcement = pb.VersionAnnouncement(
        record=identity.sign(RECORD_DOMAIN, record.payload()),
        manifests=[
            identity.sign(MANIFEST_DOMAIN, manifest_to_pb(manifest).SerializeToString(deterministic=True))
            for manifest in manifests
        ],
        base=base,
    )
    parse_announcement(announcement)
    return announcement


def sign_again(announcement: pb.VersionAnnouncement, identity: Identity) -> pb.VersionAnnouncement:
    """Return an announcement of the same record, manifests and base, signed with another key."""
    return pb.VersionAnnouncement(
        record=identity.sign(RECORD_DOMAIN, announcement.record.payload),
        manifests=[identity.sign(MANIFEST_DOMAIN, signed.payload) for signed in announcement.manifests],
        base=sign_again(announcement.base, identity) if announcement.HasField("base") else None,
    )


def verify_announcement(
    announcement: pb.VersionAnnouncement, *, run_id: RunId, learner_public_key: bytes
) -> VerifiedVersion:
    """Check an announcement from the network, and that of its base: form, bounds, run, then signatures.

    Raises:
        WrongKey: the announcement was not signed by the learner.
        BadSignature: the announcement was changed after it was signed.
        MalformedMessage: the announcement belongs to another run, or exceeds a bound.
    """
    for one in _with_base(announcement):
        _check_sizes(one)
        verify_signed(one.record, RECORD_DOMAIN, learner_public_key)
        for signed in one.manifests:
            verify_signed(signed, MANIFEST_DOMAIN, learner_public_key)
    verified = parse_announcement(announcement)
    require(verified.record.run_id == run_id, f"version {verified.version} is of another run")
    return verified


def parse_announcement(announcement: pb.VersionAnnouncement) -> VerifiedVersion:
    """Check all that ``verify_announcement`` checks except run and signatures, for announcements made or stored here.

    Raises:
        MalformedMessage: a bound is exceeded, or record, base and manifests do not fit together.
    """
    *bases, verified = [_parsed(one) for one in _with_base(announcement)]
    base = bases[0] if bases else None
    _check_base(verified.record, None if base is None else base.record)
    return replace(verified, base=base)


def _with_base(announcement: pb.VersionAnnouncement) -> Sequence[pb.VersionAnnouncement]:
    """Return the announcement after that of its base, if it has one."""
    if not announcement.HasField("base"):
        return (announcement,)
    require(not announcement.base.HasField("base"), "a base has a base itself")
    return announcement.base, announcement


def _parsed(announcement: pb.VersionAnnouncement) -> VerifiedVersion:
    """Return what an announcement says, without its base."""
    _check_sizes(announcement)
    record = record_from_pb(_parse(pb.VersionRecord, announcement.record.payload))
    record_hash = blake3_hash(announcement.record.payload)
    manifests = tuple(manifest_from_pb(_parse(pb.Manifest, signed.payload)) for signed in announcement.manifests)
    for manifest in manifests:
        same = (manifest.run_id, manifest.epoch, manifest.version) == (record.run_id, record.epoch, record.version)
        require(same and manifest.record_hash == record_hash, "a manifest belongs to another record")
    _check_encodings(manifests, record)
    return VerifiedVersion(record, manifests, record_hash, announcement)


def _check_base(record: VersionRecord, base: VersionRecord | None) -> None:
    """Check that the announcement has the base that the signed record names, and no other."""
    if record.base is None or base is None:
        require(record.base is None and base is None, "an announcement and its record disagree on a base")
        return
    require(base.run_id == record.run_id, "the base is of another run")
    require(base.base is None, "a base has a base itself")
    require(record.base == BaseRef(base.version, base.state_hash), "the base is another version than the record names")


def _check_encodings(manifests: Sequence[Manifest], record: VersionRecord) -> None:
    require(len({manifest.encoding_id for manifest in manifests}) == len(manifests), "an encoding occurs twice")
    keyframes = [manifest for manifest in manifests if manifest.kind == "keyframe"]
    require(len(keyframes) == 1 and keyframes[0].encoding_id == KEYFRAME_ID, "encoding 0 must be the only keyframe")
    require(keyframes[0].size_bytes == record.state_size_bytes, "a keyframe has another size than the state")
    deltas = [manifest.size_bytes for manifest in manifests if manifest.kind == "delta"]
    require(not deltas or max(deltas) <= delta_bytes_max(record.tensors), "a delta is longer than is possible")
    starts = {manifest.base_version for manifest in manifests if manifest.kind == "delta"}
    require(record.base is None or record.base.version not in starts, "a delta leads from a base to adapters")


def _check_sizes(announcement: pb.VersionAnnouncement) -> None:
    require(len(announcement.record.payload) <= limits.RECORD_BYTES_MAX, "a version record is too long")
    require(1 <= len(announcement.manifests) <= limits.ENCODINGS_MAX, "number of manifests out of range")
    for signed in announcement.manifests:
        require(len(signed.payload) <= limits.MANIFEST_BYTES_MAX, "a manifest is too long")


# ---------------------------------------------------------------- from and to messages


def record_to_pb(record: VersionRecord) -> pb.VersionRecord:
    """Convert a record to a message."""
    return pb.VersionRecord(
        run_id=record.run_id,
        epoch=record.epoch,
        version=record.version,
        parent_hash=record.parent_hash,
        state_hash=record.state_hash,
        state_size_bytes=record.state_size_bytes,
        tensors=[
            pb.TensorSpec(
                name=tensor.name,
                dtype=tensor.dtype,
                shape=tensor.shape,
                offset_bytes=tensor.offset_bytes,
                size_bytes=tensor.size_bytes,
            )
            for tensor in record.tensors
        ],
        model_json=record.model_json,
        base=None if record.base is None else _base_to_pb(record.base),
    )


def _base_to_pb(base: BaseRef) -> pb.BaseRef:
    return pb.BaseRef(version=base.version, state_hash=base.state_hash)


def _base_from_pb(message: pb.VersionRecord) -> BaseRef | None:
    if not message.HasField("base"):
        return None
    require(message.base.version < message.version, "a base is not older than its version")
    require(len(message.base.state_hash) == HASH_BYTES, "the hash of a base has the wrong length")
    return BaseRef(Version(message.base.version), message.base.state_hash)


def record_from_pb(message: pb.VersionRecord) -> VersionRecord:
    """Convert a received record, checking every bound.

    Raises:
        MalformedMessage: a number, hash or name is out of range, the tensors do not fill the state, or the base is not
            older.
    """
    require(max(message.epoch, message.version) <= limits.COUNTER_MAX, "epoch or version out of range")
    require(len(message.parent_hash) in (0, HASH_BYTES), "a parent hash has the wrong length")
    require(message.version > 0 or not message.parent_hash, "version 0 cannot have a parent")
    require(len(message.state_hash) == HASH_BYTES, "a state hash has the wrong length")
    require(1 <= message.state_size_bytes <= limits.STATE_BYTES_MAX, "state size out of range")
    require(len(message.model_json) <= limits.MODEL_JSON_LENGTH_MAX, "the model description is too long")
    return VersionRecord(
        run_id=RunId(message.run_id),
        epoch=Epoch(message.epoch),
        version=Version(message.version),
        parent_hash=message.parent_hash,
        state_hash=message.state_hash,
        state_size_bytes=message.state_size_bytes,
        tensors=tensors_from_pb(message),
        model_json=message.model_json,
        base=_base_from_pb(message),
    )


def manifest_to_pb(manifest: Manifest) -> pb.Manifest:
    """Convert a manifest to a message."""
    return pb.Manifest(
        run_id=manifest.run_id,
        epoch=manifest.epoch,
        version=manifest.version,
        encoding_id=manifest.encoding_id,
        kind=_KIND_TO_PB[manifest.kind],
        base_version=manifest.base_version or 0,
        compression=manifest.compression,
        record_hash=manifest.record_hash,
        size_bytes=manifest.size_bytes,
        chunk_size_bytes=manifest.chunk_size_bytes,
        chunk_count=manifest.chunk_count,
        chunk_list_hash=manifest.chunk_list_hash,
    )


def manifest_from_pb(message: pb.Manifest) -> Manifest:
    """Convert a received manifest, checking every bound.

    Raises:
        MalformedMessage: the kind or compression is unknown, the base is not older, or sizes do not fit.
    """
    require(message.kind in _KIND_FROM_PB, "unknown kind of encoding")
    require(message.compression in _COMPRESSIONS, "unknown compression")
    kind = _KIND_FROM_PB[message.kind]
    is_delta = kind == "delta"
    require(message.compression == ("zstd" if is_delta else ""), "compression of another kind of encoding")
    require(message.base_version < message.version if is_delta else not message.base_version, "base version")
    require(len(message.record_hash) == HASH_BYTES, "a record hash has the wrong length")
    require(len(message.chunk_list_hash) == HASH_BYTES, "a chunk list hash has the wrong length")
    require(1 <= message.size_bytes <= limits.STATE_BYTES_MAX, "encoded size out of range")
    size_range = (limits.CHUNK_SIZE_BYTES_MIN, limits.CHUNK_SIZE_BYTES_MAX)
    require(size_range[0] <= message.chunk_size_bytes <= size_range[1], "chunk size out of range")
    require(message.chunk_count == chunk_count(message.size_bytes, message.chunk_size_bytes), "chunk count")
    require(message.chunk_count <= limits.CHUNK_COUNT_MAX, "too many chunks")
    return Manifest(
        run_id=RunId(message.run_id),
        epoch=Epoch(message.epoch),
        version=Version(message.version),
        encoding_id=EncodingId(message.encoding_id),
        kind=kind,
        base_version=Version(message.base_version) if is_delta else None,
        compression=_COMPRESSIONS[message.compression],
        record_hash=message.record_hash,
        size_bytes=message.size_bytes,
        chunk_size_bytes=message.chunk_size_bytes,
        chunk_count=message.chunk_count,
        chunk_list_hash=message.chunk_list_hash,
    )


def _parse(kind: type[MessageT], payload: bytes) -> MessageT:
    try:
        return kind.FromString(payload)
    except DecodeError as error:
        raise MalformedMessage(f"not a {kind.DESCRIPTOR.name}", cause=str(error)) from None
