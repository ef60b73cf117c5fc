"""Which accusations reach the core with proof: whatever peers send, only the accused peer's own receipt is one."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from coordinator.core.events.events import PeerAccused
from coordinator.ledger.store import RunStore, StoredVersion
from coordinator.rpc.accusations import accused_event
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.identity.identity import Identity
from rollcast.wire.ids import ChunkIndex, Epoch, PeerId, RunId, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.chunks import ListProof, blake3_hash
from rollcast.wire.versions.receipts import NONCE_BYTES, ChunkReceipt, sign_receipt
from rollcast.wire.versions.records import KEYFRAME_ID
from tests.wire.versions.build import RUN_ID, a_state, a_version

LEARNER, CULPRIT, ACCUSER, LIAR = (Identity.generate() for _ in range(4))
VERIFIED, HASHES = a_version(a_state(), LEARNER)
MANIFEST = VERIFIED.keyframe
INDEX = 3


class Ledger:
    """The part of a ledger that an accusation needs: one version."""

    def version(self, version: Version) -> asyncio.Future[StoredVersion | None]:
        found: asyncio.Future[StoredVersion | None] = asyncio.get_running_loop().create_future()
        known = StoredVersion(Epoch(0), Version(1), VERIFIED.announcement.SerializeToString())
        found.set_result(known if version == 1 else None)
        return found


LEDGER = Ledger()


def receipt(signer: Identity = CULPRIT, **changes: Any) -> pb.Signed:
    stated = ChunkReceipt(
        RUN_ID,
        Version(1),
        KEYFRAME_ID,
        ChunkIndex(INDEX),
        blake3_hash(b"other bytes"),
        MANIFEST.chunk_list_hash,
        ACCUSER.peer_id,
        bytes(NONCE_BYTES),
    )
    return sign_receipt(replace(stated, **changes), signer)


def accusation(signed: pb.Signed | None, **changes: Any) -> pb.Accusation:
    proof = ListProof.of(HASHES, INDEX)
    values: dict[str, Any] = {
        "culprit_peer_id": CULPRIT.peer_id,
        "version": 1,
        "encoding_id": KEYFRAME_ID,
        "chunk_index": INDEX,
        "reason": "hash",
        "receipt": signed,
        "list_block": proof.block,
        "list_block_hashes": proof.block_hashes,
    }
    return pb.Accusation(**(values | changes))


async def event_of(message: pb.Accusation, accuser: PeerId = ACCUSER.peer_id) -> PeerAccused:
    return await accused_event(accuser, message, run_id=RUN_ID, ledger=cast(RunStore, LEDGER))


async def test_the_accused_peers_own_receipt_is_proof_and_evidence() -> None:
    signed = receipt()
    event = await event_of(accusation(signed))
    assert event == PeerAccused(
        ACCUSER.peer_id, CULPRIT.peer_id, Version(1), INDEX, "hash", signed.SerializeToString(deterministic=True)
    )


@pytest.mark.parametrize(
    "message",
    [
        accusation(None),
        accusation(receipt(LIAR)),  # forged by another member
        accusation(receipt(ACCUSER)),
        accusation(receipt(LEARNER)),
        accusation(receipt(receiver=LIAR.peer_id)),  # for another receiver
        accusation(receipt(chunk_hash=HASHES[32 * INDEX : 32 * INDEX + 32])),  # for the signed bytes
        accusation(receipt(run_id=RunId("another"))),
        accusation(receipt(chunk_list_hash=bytes(32))),
        accusation(receipt(chunk_index=ChunkIndex(4))),
        accusation(receipt(), chunk_index=4),
        accusation(receipt(), version=2),
        accusation(receipt(), encoding_id=9),
        accusation(receipt(), list_block=bytes(len(HASHES))),  # a list in which all is wrong
        accusation(receipt(), list_block=b""),
        accusation(receipt(), list_block_hashes=b""),
        accusation(receipt(), culprit_peer_id=LIAR.peer_id),
        accusation(receipt(), culprit_peer_id="no key"),
        accusation(pb.Signed()),
    ],
)
async def test_anything_else_is_the_accusers_word(message: pb.Accusation) -> None:
    assert (await event_of(message)).receipt == b""


async def test_a_receipt_that_was_given_to_another_peer_is_no_proof() -> None:
    assert (await event_of(accusation(receipt()), LIAR.peer_id)).receipt == b""


@pytest.mark.parametrize(
    "message",
    [
        accusation(None, culprit_peer_id=""),
        accusation(None, culprit_peer_id="x" * 65),
        accusation(pb.Signed(payload=bytes(2000))),
        accusation(None, version=2**63),
    ],
)
async def test_bounds(message: pb.Accusation) -> None:
    with pytest.raises(MalformedMessage):
        await event_of(message)
