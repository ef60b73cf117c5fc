from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.runtime.errors import BadSignature, MalformedMessage, RollcastError, WrongKey
from rollcast.wire.identity.identity import Identity
from rollcast.wire.ids import ChunkIndex, EncodingId, PeerId, RunId, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.chunks import ListProof, blake3_hash, chunk_list_hash
from rollcast.wire.versions.receipts import (
    NONCE_BYTES,
    RECEIPT_DOMAIN,
    ChunkReceipt,
    convicts,
    sign_receipt,
    verify_receipt,
)
from rollcast.wire.versions.records import keyframe_manifest
from tests.wire.versions.build import a_record, a_state

RELAY = Identity.generate()
RECEIVER, OTHER = PeerId("receiver"), PeerId("other")
COUNT = 2500  # chunks: three blocks of the list
LIST = b"".join(blake3_hash(bytes([index % 256, index // 256])) for index in range(COUNT))
MANIFEST = replace(
    keyframe_manifest(a_record(a_state()), LIST, 8192), chunk_count=COUNT, chunk_list_hash=chunk_list_hash(LIST)
)
PLACES = (0, 1023, 1024, COUNT - 1)


def receipt(index: int = 1024, **changes: Any) -> ChunkReceipt:
    made = ChunkReceipt(
        MANIFEST.run_id,
        MANIFEST.version,
        MANIFEST.encoding_id,
        ChunkIndex(index),
        blake3_hash(b"other bytes"),
        MANIFEST.chunk_list_hash,
        RECEIVER,
        bytes(NONCE_BYTES),
    )
    return replace(made, **changes)


@pytest.mark.parametrize("index", PLACES)
def test_a_receipt_for_other_bytes_than_the_signed_ones_convicts(index: int) -> None:
    stated = verify_receipt(sign_receipt(receipt(index), RELAY), RELAY.peer_id)
    assert stated == receipt(index)
    proof = ListProof.of(LIST, index)
    assert convicts(stated, RECEIVER, MANIFEST, proof)
    assert not convicts(replace(stated, chunk_hash=LIST[32 * index : 32 * index + 32]), RECEIVER, MANIFEST, proof)


@pytest.mark.parametrize(
    "changes",
    [
        {"run_id": RunId("another")},
        {"version": Version(77)},
        {"encoding_id": EncodingId(5)},
        {"chunk_list_hash": bytes(32)},
        {"receiver": OTHER},
        {"chunk_index": ChunkIndex(COUNT)},
        {"chunk_index": ChunkIndex(3)},
    ],
)
def test_a_receipt_for_something_else_convicts_nobody(changes: dict[str, Any]) -> None:
    proof = ListProof.of(LIST, 1024)
    assert not convicts(receipt(**changes), RECEIVER, MANIFEST, proof)


def test_a_proof_of_another_list_convicts_nobody() -> None:
    other = blake3_hash(b"x") + LIST[32:]
    for proof in (
        ListProof.of(other, 0),
        ListProof(LIST[:32768], b""),
        ListProof(b"", ListProof.of(LIST, 0).block_hashes),
        ListProof.of(LIST, 1024),
        ListProof(other[:32768], ListProof.of(LIST, 0).block_hashes),
        ListProof(LIST[:32736], ListProof.of(LIST, 0).block_hashes),
    ):
        assert not convicts(receipt(0), RECEIVER, MANIFEST, proof)


def test_no_other_key_signs_a_receipt_of_this_relay() -> None:
    signed = sign_receipt(receipt(), Identity.generate())
    with pytest.raises(WrongKey):
        verify_receipt(signed, RELAY.peer_id)
    with pytest.raises(BadSignature):
        verify_receipt(
            pb.Signed(payload=signed.payload, signature=signed.signature, public_key=RELAY.public_key), RELAY.peer_id
        )
    with pytest.raises(WrongKey):
        verify_receipt(signed, PeerId("no peer id"))


@pytest.mark.parametrize("changes", [{"chunk_hash": b"short"}, {"nonce": b""}, {"run_id": RunId("x" * 2000)}])
def test_bounds(changes: dict[str, Any]) -> None:
    with pytest.raises(MalformedMessage):
        verify_receipt(sign_receipt(receipt(**changes), RELAY), RELAY.peer_id)


@given(st.integers(0, 200), st.integers(0, 7))
def test_a_changed_bit_invalidates_a_receipt(place: int, bit: int) -> None:
    signed = sign_receipt(receipt(), RELAY)
    payload = bytearray(signed.payload)
    payload[place % len(payload)] ^= 1 << bit
    with pytest.raises(RollcastError):
        verify_receipt(
            pb.Signed(payload=bytes(payload), signature=signed.signature, public_key=RELAY.public_key), RELAY.peer_id
        )


def test_a_signature_for_another_purpose_is_no_receipt() -> None:
    payload = sign_receipt(receipt(), RELAY).payload
    assert RECEIPT_DOMAIN != "rollcast/peer-record/1"
    with pytest.raises(BadSignature):
        verify_receipt(RELAY.sign("rollcast/peer-record/1", payload), RELAY.peer_id)
