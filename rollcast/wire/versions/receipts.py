"""Sign and verify receipts: a relay's statement of what it sent as one chunk, which can convict it.

The receiver of a wrong chunk asks its sender for a receipt. A relay that states the hash of other bytes than the signed
ones has convicted itself, whoever carries the receipt. A relay that refuses, or states another hash than that of the
bytes that came, cannot be convicted: no receiver can prove what was sent without its sender's word. Then both keep
their reputation, and the link between them is given up. So no number of liars convicts an honest relay: it signs the
hash of bytes that it verified before it stored them.
"""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from rollcast.runtime.errors import MalformedMessage
from rollcast.wire import limits
from rollcast.wire.checks import require
from rollcast.wire.identity.identity import Identity, public_key_of, verify_signed
from rollcast.wire.ids import ChunkIndex, EncodingId, PeerId, RunId, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.chunks import HASH_BYTES, ListProof
from rollcast.wire.versions.records import Manifest

RECEIPT_DOMAIN = "rollcast/chunk-receipt/1"
NONCE_BYTES = 16


@dataclass(frozen=True, slots=True)
class ChunkReceipt:
    """What a relay states to have sent.

    Args:
        chunk_hash: BLAKE3 of the bytes that it sent.
        chunk_list_hash: BLAKE3 of the chunk list that it holds, which the encoding's manifest names.
        receiver: the peer that it sent them to.
        nonce: the receiver's, so that no earlier receipt answers its request.
    """

    run_id: RunId
    version: Version
    encoding_id: EncodingId
    chunk_index: ChunkIndex
    chunk_hash: bytes
    chunk_list_hash: bytes
    receiver: PeerId
    nonce: bytes


def sign_receipt(receipt: ChunkReceipt, identity: Identity) -> pb.Signed:
    """Sign a receipt as the sender of the chunk."""
    message = pb.ChunkReceipt(
        run_id=receipt.run_id,
        version=receipt.version,
        encoding_id=receipt.encoding_id,
        chunk_index=receipt.chunk_index,
        chunk_hash=receipt.chunk_hash,
        chunk_list_hash=receipt.chunk_list_hash,
        receiver_peer_id=receipt.receiver,
        nonce=receipt.nonce,
    )
    return identity.sign(RECEIPT_DOMAIN, message.SerializeToString(deterministic=True))


def verify_receipt(signed: pb.Signed, signer: PeerId) -> ChunkReceipt:
    """Verify a receipt from the network: bounds and signature.

    Raises:
        MalformedMessage: it exceeds a bound.
        WrongKey: another key than that of ``signer`` signed it, or ``signer`` is no peer id.
        BadSignature: it was changed after it was signed.
    """
    require(signed.ByteSize() <= limits.RECEIPT_BYTES_MAX, "a receipt is too long")
    payload = verify_signed(signed, RECEIPT_DOMAIN, public_key_of(signer))
    try:
        message = pb.ChunkReceipt.FromString(payload)
    except DecodeError:
        raise MalformedMessage("a receipt cannot be read") from None
    require(message.version <= limits.COUNTER_MAX, "a version is out of range")
    hashes = (message.chunk_hash, message.chunk_list_hash)
    require(all(len(one) == HASH_BYTES for one in hashes), "a receipt's hash has another length")
    require(len(message.nonce) == NONCE_BYTES, "a receipt's nonce has another length")
    return ChunkReceipt(
        RunId(message.run_id),
        Version(message.version),
        EncodingId(message.encoding_id),
        ChunkIndex(message.chunk_index),
        message.chunk_hash,
        message.chunk_list_hash,
        PeerId(message.receiver_peer_id),
        message.nonce,
    )


def convicts(receipt: ChunkReceipt, receiver: PeerId, manifest: Manifest, proof: ListProof) -> bool:
    """Return whether a verified receipt proves that its signer sent ``receiver`` other bytes than the signed ones.

    Args:
        manifest: the signed manifest of the encoding that the receipt names.
        proof: of the chunk's entry in the signed chunk list, as the accuser gives it.
    """
    named = (receipt.run_id, receipt.version, receipt.encoding_id, receipt.chunk_list_hash, receipt.receiver)
    if named != (manifest.run_id, manifest.version, manifest.encoding_id, manifest.chunk_list_hash, receiver):
        return False
    try:
        expected = proof.proved_hash(receipt.chunk_index, manifest.chunk_count, manifest.chunk_list_hash)
    except MalformedMessage:
        return False
    return receipt.chunk_hash != expected
