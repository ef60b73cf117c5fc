from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.runtime.errors import BadSignature, MalformedMessage, RollcastError, WrongKey
from rollcast.wire import limits
from rollcast.wire.identity.identity import Identity
from rollcast.wire.ids import EncodingId, RunId, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.chunks import blake3_hash, chunk_count, chunk_list
from rollcast.wire.versions.delta import delta_bytes_max
from rollcast.wire.versions.records import (
    MANIFEST_DOMAIN,
    PREVIOUS_ID,
    RECORD_DOMAIN,
    SQUASHED_ID,
    BaseRef,
    Manifest,
    VerifiedVersion,
    delta_manifest,
    keyframe_manifest,
    sign_again,
    sign_version,
    verify_announcement,
)
from tests.wire.versions.build import CHUNK, RUN_ID, a_record, a_state, a_version

IDENTITY = Identity.generate()
STATE = a_state()


def verify(announcement: pb.VersionAnnouncement) -> VerifiedVersion:
    return verify_announcement(announcement, run_id=RUN_ID, learner_public_key=IDENTITY.public_key)


def announce(
    spoil_record: Callable[[pb.VersionRecord], object] = lambda _: None,
    spoil_manifest: Callable[[pb.Manifest], object] = lambda _: None,
    copies: int = 1,
) -> pb.VersionAnnouncement:
    """Return an announcement that is properly signed and wrong in one point."""
    verified, _ = a_version(STATE, IDENTITY, 5)
    record = pb.VersionRecord.FromString(verified.announcement.record.payload)
    spoil_record(record)
    signed_record = IDENTITY.sign(RECORD_DOMAIN, record.SerializeToString(deterministic=True))
    manifest = pb.Manifest.FromString(verified.announcement.manifests[0].payload)
    manifest.record_hash = blake3_hash(signed_record.payload)
    spoil_manifest(manifest)
    signed = IDENTITY.sign(MANIFEST_DOMAIN, manifest.SerializeToString(deterministic=True))
    return pb.VersionAnnouncement(record=signed_record, manifests=[signed] * copies)


def put(field: str, value: object) -> Callable[[Any], object]:
    return lambda message: setattr(message, field, value)


def put_tensor(field: str, value: object, at: int = 0) -> Callable[[pb.VersionRecord], object]:
    return lambda record: setattr(record.tensors[at], field, value)


def put_shape(*shape: int) -> Callable[[pb.VersionRecord], object]:
    def change(record: pb.VersionRecord) -> None:
        del record.tensors[0].shape[:]
        record.tensors[0].shape.extend(shape)

    return change


RECORD_ATTACKS: dict[str, Callable[[pb.VersionRecord], object]] = {
    "another run": put("run_id", "other"),
    "no run": put("run_id", ""),
    "huge version": put("version", 2**63),
    "huge epoch": put("epoch", 2**64 - 1),
    "rolled back": put("version", 4),
    "short parent hash": put("parent_hash", b"x" * 31),
    "long parent hash": put("parent_hash", b"x" * 33),
    "no state hash": put("state_hash", b""),
    "long state hash": put("state_hash", b"x" * 64),
    "no state": put("state_size_bytes", 0),
    "endless state": put("state_size_bytes", 2**63),
    "larger state": put("state_size_bytes", len(STATE) + 1),
    "smaller state": put("state_size_bytes", len(STATE) - 1),
    "no tensors": lambda record: record.ClearField("tensors"),
    "endless model": put("model_json", "x" * (limits.MODEL_JSON_LENGTH_MAX + 1)),
    "many tensors": lambda record: record.tensors.extend([pb.TensorSpec(name="x")] * limits.TENSORS_MAX),
    "upper case": put_tensor("name", "Head"),
    "path with space": put_tensor("name", "a b"),
    "no name": put_tensor("name", ""),
    "line end": put_tensor("name", "head\n"),
    "null": put_tensor("name", "head\0"),
    "long name": put_tensor("name", "x" * 129),
    "same name": put_tensor("name", "head"),
    "unknown dtype": put_tensor("dtype", "float31"),
    "object dtype": put_tensor("dtype", "object"),
    "no dtype": put_tensor("dtype", ""),
    "wider dtype": put_tensor("dtype", "float64"),
    "gap": put_tensor("offset_bytes", 1, at=1),
    "overlap": put_tensor("offset_bytes", len(STATE) - 5, at=1),
    "offset at first": put_tensor("offset_bytes", 4),
    "size": put_tensor("size_bytes", 1),
    "huge size": put_tensor("size_bytes", 2**64 - 1),
    "shape": put_shape(3, 3),
    "zero in shape": put_shape(0),
    "overflowing shape": put_shape(2**63, 2**63),
    "many dimensions": put_shape(*[1] * 8, len(STATE) - 4),
}
MANIFEST_ATTACKS: dict[str, Callable[[pb.Manifest], object]] = {
    "another run": put("run_id", "other"),
    "another epoch": put("epoch", 1),
    "another version": put("version", 6),
    "another record": put("record_hash", b"x" * 32),
    "no record": put("record_hash", b""),
    "not encoding 0": put("encoding_id", 1),
    "no kind": put("kind", 0),
    "unknown kind": put("kind", 9),
    "a delta only": lambda manifest: (put("kind", pb.DELTA)(manifest), put("base_version", 4)(manifest)),
    "keyframe with a base": put("base_version", 1),
    "unknown compression": put("compression", "pickle"),
    "another size": put("size_bytes", len(STATE) + 1),
    "no size": put("size_bytes", 0),
    "endless": put("size_bytes", 2**64 - 1),
    "no chunk size": put("chunk_size_bytes", 0),
    "tiny chunks": lambda manifest: (put("chunk_size_bytes", 1)(manifest), put("chunk_count", len(STATE))(manifest)),
    "huge chunks": lambda manifest: (put("chunk_size_bytes", 1 << 30)(manifest), put("chunk_count", 1)(manifest)),
    "fewer chunks": put("chunk_count", 10),
    "more chunks": put("chunk_count", 12),
    "no chunk": put("chunk_count", 0),
    "short list hash": put("chunk_list_hash", b"x" * 31),
}


def test_receivers_read_what_the_learner_signs() -> None:
    verified, hashes = a_version(STATE, IDENTITY, 5)
    record = a_record(STATE, 5)
    assert verified.record == record
    assert verified.record_hash == record.hash()
    assert verified.keyframe == keyframe_manifest(record, hashes, CHUNK) == verified.manifest(0)
    assert verified.manifest(1) is None
    assert verified.version == 5
    again = pb.VersionAnnouncement.FromString(verified.announcement.SerializeToString())
    assert verify(again) == verified


def test_announcements_without_a_fault_pass() -> None:
    verify(announce())


@pytest.mark.parametrize("attack", RECORD_ATTACKS)
def test_records_with_one_fault_are_refused(attack: str) -> None:
    with pytest.raises(MalformedMessage):
        verify(announce(RECORD_ATTACKS[attack]))


@pytest.mark.parametrize("attack", MANIFEST_ATTACKS)
def test_manifests_with_one_fault_are_refused(attack: str) -> None:
    with pytest.raises(MalformedMessage):
        verify(announce(spoil_manifest=MANIFEST_ATTACKS[attack]))


@pytest.mark.parametrize("copies", [0, 2, limits.ENCODINGS_MAX + 1])
def test_every_encoding_occurs_once(copies: int) -> None:
    with pytest.raises(MalformedMessage):
        verify(announce(copies=copies))


def test_version_0_has_no_parent() -> None:
    record = replace(a_record(STATE, 0), parent_hash=b"x" * 32)
    manifest = keyframe_manifest(record, chunk_list(STATE, CHUNK), CHUNK)
    with pytest.raises(MalformedMessage):
        sign_version(record, [manifest], IDENTITY)


def test_every_tampered_byte_is_noticed() -> None:
    """Each byte of record, manifest, signatures and keys is changed, one at a time."""
    verified, _ = a_version(STATE, IDENTITY)
    for part in ("record", "manifest"):
        for field in ("payload", "signature", "public_key"):
            original = bytearray(getattr(_part(verified.announcement, part), field))
            for at in range(len(original)):
                announcement = pb.VersionAnnouncement()
                announcement.CopyFrom(verified.announcement)
                tampered = bytearray(original)
                tampered[at] ^= 0x20
                setattr(_part(announcement, part), field, bytes(tampered))
                with pytest.raises((BadSignature, WrongKey)):
                    verify(announcement)


def test_a_manifest_cannot_pass_for_a_record() -> None:
    announcement = announce()
    announcement.record.CopyFrom(announcement.manifests[0])
    with pytest.raises(BadSignature):
        verify(announcement)


def test_parts_of_two_versions_do_not_mix() -> None:
    one, other = a_version(STATE, IDENTITY, 1)[0], a_version(STATE, IDENTITY, 2)[0]
    mixed = pb.VersionAnnouncement(record=one.announcement.record, manifests=other.announcement.manifests)
    with pytest.raises(MalformedMessage, match="another record"):
        verify(mixed)


def test_another_key_and_another_run_are_refused() -> None:
    forged, _ = a_version(STATE, Identity.generate())
    with pytest.raises(WrongKey):
        verify(forged.announcement)
    honest, _ = a_version(STATE, IDENTITY)
    with pytest.raises(MalformedMessage, match="another run"):
        verify_announcement(honest.announcement, run_id=RunId("other-run"), learner_public_key=IDENTITY.public_key)


def test_oversized_payloads_are_refused_before_they_are_read() -> None:
    announcement = announce()
    announcement.record.payload = bytes(limits.RECORD_BYTES_MAX + 1)
    with pytest.raises(MalformedMessage, match="too long"):
        verify(announcement)
    announcement = announce()
    announcement.manifests[0].payload = bytes(limits.MANIFEST_BYTES_MAX + 1)
    with pytest.raises(MalformedMessage, match="too long"):
        verify(announcement)


@given(st.binary(max_size=200), st.binary(max_size=200))
@settings(deadline=None, max_examples=100)
def test_signed_malformed_records_are_refused(record: bytes, manifest: bytes) -> None:
    announcement = pb.VersionAnnouncement(
        record=IDENTITY.sign(RECORD_DOMAIN, record), manifests=[IDENTITY.sign(MANIFEST_DOMAIN, manifest)]
    )
    with pytest.raises(MalformedMessage):
        verify(announcement)


@given(st.binary(max_size=300))
@settings(deadline=None, max_examples=100)
def test_unsigned_malformed_records_are_refused(data: bytes) -> None:
    from google.protobuf.message import DecodeError

    try:
        announcement = pb.VersionAnnouncement.FromString(data)
    except DecodeError:
        return
    with pytest.raises(RollcastError):
        verify(announcement)


def a_delta(**changes: Any) -> Manifest:
    delta = delta_manifest(
        a_record(STATE, 5), PREVIOUS_ID, Version(4), size_bytes=2000, chunk_hashes=b"x" * 64, chunk_size_bytes=CHUNK
    )
    return replace(delta, **changes)


def with_deltas(*deltas: Manifest) -> pb.VersionAnnouncement:
    record = a_record(STATE, 5)
    return sign_version(record, [keyframe_manifest(record, chunk_list(STATE, CHUNK), CHUNK), *deltas], IDENTITY)


def test_a_version_may_have_deltas_too() -> None:
    squashed = a_delta(encoding_id=SQUASHED_ID, base_version=Version(0))
    verified = verify(with_deltas(a_delta(), squashed))
    assert verified.manifest(1) == a_delta()
    assert verified.deltas == (a_delta(), squashed)
    assert verified.keyframe.kind == "keyframe"


LONGEST = delta_bytes_max(a_record(STATE).tensors)
DELTA_ATTACKS: dict[str, dict[str, Any]] = {
    "from itself": {"base_version": Version(5)},
    "from a later one": {"base_version": Version(6)},
    "uncompressed": {"compression": ""},
    "encoding 0": {"encoding_id": EncodingId(0)},
    "longer than any": {"size_bytes": LONGEST + 1, "chunk_count": chunk_count(LONGEST + 1, CHUNK)},
    "of another record": {"record_hash": b"x" * 32},
}


@pytest.mark.parametrize("attack", DELTA_ATTACKS)
def test_deltas_with_one_fault_are_refused(attack: str) -> None:
    with pytest.raises(MalformedMessage):
        with_deltas(a_delta(**DELTA_ATTACKS[attack]))
    with_deltas(a_delta(size_bytes=LONGEST, chunk_count=chunk_count(LONGEST, CHUNK)))


def test_a_keyframe_is_not_compressed() -> None:
    record = a_record(STATE, 5)
    keyframe = keyframe_manifest(record, chunk_list(STATE, CHUNK), CHUNK)
    with pytest.raises(MalformedMessage):
        sign_version(record, [replace(keyframe, compression="zstd")], IDENTITY)


BASE, _ = a_version(a_state(seed=1), IDENTITY, 0)
NEWER_BASE, _ = a_version(a_state(seed=1), IDENTITY, 2)


def test_adapters_name_their_base_and_bring_its_announcement() -> None:
    verified, _ = a_version(STATE, IDENTITY, 5, base=BASE)
    assert verified.record.base == BaseRef(Version(0), BASE.record.state_hash)
    assert verified.base == BASE
    assert verified.whole == BASE.whole == BASE.record
    assert BASE.base is BASE.record.base is None
    assert replace(verified.record, base=None).hash() != verified.record.hash(), "the base is signed"


def with_base(base: pb.VersionAnnouncement | None, named: BaseRef | None, version: int = 5) -> pb.VersionAnnouncement:
    """Return version 5's announcement with a base's, which need not be the one that the record names."""
    record = replace(a_record(STATE, version), base=named)
    manifest = keyframe_manifest(record, chunk_list(STATE, CHUNK), CHUNK)
    return sign_version(record, [manifest], IDENTITY, base=base)


NAMED = BaseRef(Version(0), BASE.record.state_hash)
BASE_ATTACKS: dict[str, Callable[[], pb.VersionAnnouncement]] = {
    "not brought": lambda: with_base(None, NAMED),
    "not named": lambda: with_base(BASE.announcement, None),
    "another state": lambda: with_base(BASE.announcement, replace(NAMED, state_hash=b"x" * 32)),
    "another version": lambda: with_base(NEWER_BASE.announcement, NAMED),
    "short hash": lambda: with_base(BASE.announcement, replace(NAMED, state_hash=b"x" * 31)),
    "not older": lambda: with_base(
        NEWER_BASE.announcement, BaseRef(Version(2), NEWER_BASE.record.state_hash), version=2
    ),
    "adapters": lambda: with_base(
        (one := a_version(STATE, IDENTITY, 3, base=BASE)[0]).announcement, BaseRef(Version(3), one.record.state_hash)
    ),
}


@pytest.mark.parametrize("attack", BASE_ATTACKS)
def test_bases_with_one_fault_are_refused(attack: str) -> None:
    with pytest.raises(MalformedMessage):
        BASE_ATTACKS[attack]()
    verify(with_base(BASE.announcement, NAMED))


def test_another_key_signs_the_same_version_and_its_base_again() -> None:
    verified, other = a_version(STATE, IDENTITY, 5, base=BASE)[0], Identity.generate()
    again = sign_again(verified.announcement, other)
    found = verify_announcement(again, run_id=RUN_ID, learner_public_key=other.public_key)
    assert (found.record, found.manifests, found.record_hash) == (
        verified.record,
        verified.manifests,
        verified.record_hash,
    )
    assert sign_again(again, IDENTITY) == verified.announcement
    with pytest.raises(WrongKey):
        verify(again)


def test_no_delta_leads_from_a_base_to_its_adapters() -> None:
    record = replace(a_record(STATE, 5), base=NAMED)
    keyframe, delta = keyframe_manifest(record, chunk_list(STATE, CHUNK), CHUNK), a_delta(record_hash=record.hash())
    sign_version(record, [keyframe, delta], IDENTITY, base=BASE.announcement)
    with pytest.raises(MalformedMessage, match="from a base"):
        sign_version(record, [keyframe, replace(delta, base_version=Version(0))], IDENTITY, base=BASE.announcement)


def test_the_learner_signed_the_base_too() -> None:
    forged, _ = a_version(a_state(seed=1), Identity.generate(), 0)
    with pytest.raises(WrongKey):
        verify(with_base(forged.announcement, NAMED))


def test_chunk_ranges_and_lists_are_checked() -> None:
    verified, hashes = a_version(STATE, IDENTITY)
    assert verified.keyframe.chunk_range(10) == (10 * CHUNK, len(STATE))
    for index in (-1, 11):
        with pytest.raises(MalformedMessage):
            verified.keyframe.chunk_range(index)
    verified.keyframe.check_chunk_list(hashes)
    with pytest.raises(MalformedMessage):
        verified.keyframe.check_chunk_list(hashes[::-1])


def _part(announcement: pb.VersionAnnouncement, part: str) -> pb.Signed:
    return announcement.record if part == "record" else announcement.manifests[0]
