"""Test what becomes of wrong chunks between real relays: receipts, and accusations with and without them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from peer.links.transport import Link
from peer.relay import accusations
from rollcast.wire.ids import ChunkIndex, Version
from rollcast.wire.links.frames import NO_STRIPE, ChunkFrame
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.chunks import ListProof, blake3_hash, chunk_list_hash
from rollcast.wire.versions.receipts import NONCE_BYTES, ChunkReceipt, convicts, sign_receipt, verify_receipt
from rollcast.wire.versions.records import KEYFRAME_ID
from tests.peer.relay.relay_world import Member, Puppet, relay_world, until
from tests.peer.versions import Published


def all_hold(members: list[Member], *versions: int) -> bool:
    return all(set(versions) <= set(member.completed) for member in members)


Answer = Callable[[Puppet, Published, Link, pb.ReceiptRequest], pb.Signed | None]


def receipt_of(liar: Puppet, published: Published, link: Link, request: pb.ReceiptRequest, **lies: Any) -> pb.Signed:
    """Return the liar's receipt for what it sent, which is its chunk with another last byte, but for ``lies``."""
    stated = {
        "run_id": published.record.run_id,
        "version": Version(request.version),
        "encoding_id": KEYFRAME_ID,
        "chunk_index": ChunkIndex(request.chunk_index),
        "chunk_hash": blake3_hash(changed(published.chunk(request.chunk_index))),
        "chunk_list_hash": chunk_list_hash(published.chunk_lists[KEYFRAME_ID]),
        "receiver": link.peer_id,
        "nonce": request.nonce,
    }
    return sign_receipt(ChunkReceipt(**(stated | lies)), liar.identity)


def changed(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def denial(liar: Puppet, published: Published, link: Link, request: pb.ReceiptRequest) -> pb.Signed:
    return receipt_of(liar, published, link, request, chunk_hash=blake3_hash(published.chunk(request.chunk_index)))


def old_receipt(liar: Puppet, published: Published, link: Link, request: pb.ReceiptRequest) -> pb.Signed:
    return receipt_of(liar, published, link, request, nonce=bytes(NONCE_BYTES))


def forged(liar: Puppet, published: Published, link: Link, request: pb.ReceiptRequest) -> pb.Signed:
    receipt = receipt_of(liar, published, link, request)
    return pb.Signed(payload=receipt.payload, signature=bytes(64), public_key=receipt.public_key)


@pytest.mark.parametrize("answer", [receipt_of, denial, old_receipt, forged, None])
async def test_a_relay_that_changes_bytes_is_accused_and_bypassed(
    tmp_path: Path, answer: Answer | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accusations, "RECEIPT_WAIT_S", 5.0 if answer else 0.05)
    async with relay_world(tmp_path) as world:
        origin, b, c = await world.add("origin", "b", "c")
        liar = await world.puppet()

        def asked(link: Link, message: pb.LinkMessage) -> None:
            if message.HasField("receipt_request") and answer is not None:
                link.send(pb.LinkMessage(receipt=answer(liar, published, link, message.receipt_request)))

        liar.on_message = asked

        def pass_on_changed(_link: Link, frame: ChunkFrame) -> None:
            for other in (b, c):
                if other.peer_id in liar.links and frame.stripe != NO_STRIPE:
                    data = changed(bytes(frame.payload))
                    liar.links[other.peer_id].send_chunk(0, 0, frame.index, data, frame.stripe)

        liar.on_chunk = pass_on_changed
        await world.plan(origin, liar, b, c)
        published = world.published(0)
        await world.publish(published)
        await until(lambda: all_hold([b, c], 0) and all(peer.accusations for peer in (b, c)))
        for peer in (b, c):
            (accusation,) = peer.accusations
            assert accusation.culprit_peer_id == liar.peer_id
            assert peer.report.chunks_rejected == 1, "nothing more is read from it"
            assert peer.state(0) == published.state
            assert accusation.HasField("receipt") == (answer is receipt_of)
            if answer is receipt_of:
                receipt = verify_receipt(accusation.receipt, liar.peer_id)
                proof = ListProof(accusation.list_block, accusation.list_block_hashes)
                verified = b.relay._versions.known(0)
                assert verified is not None
                assert convicts(receipt, peer.peer_id, verified.keyframe, proof)
        await until(lambda: not liar.links.keys() & {b.peer_id, c.peer_id})
        assert origin.accusations == []


async def test_an_honest_relay_gives_one_receipt_a_link_and_it_convicts_nobody(tmp_path: Path) -> None:
    """Whoever asks an honest relay for receipts gets no proof against it, whatever it claims to have received."""
    async with relay_world(tmp_path) as world:
        origin, a = await world.add("origin", "a")
        asking = await world.puppet()
        await world.plan(origin, a, asking)
        published = world.published(0)
        await world.publish(published)
        await until(lambda: all_hold([a], 0))
        link, nonce = asking.links[a.peer_id], bytes(range(NONCE_BYTES))
        for index in (2, 3):
            request = pb.ReceiptRequest(version=0, encoding_id=KEYFRAME_ID, chunk_index=index, nonce=nonce)
            link.send(pb.LinkMessage(receipt_request=request))
        link.send(pb.LinkMessage(want=pb.Want(version=0, encoding_id=KEYFRAME_ID, chunk_list=True)))
        await until(lambda: bool(asking.of_kind("receipt") and asking.of_kind("have")))
        for signed in asking.of_kind("receipt"):
            receipt = verify_receipt(signed, a.peer_id)
            assert (receipt.receiver, receipt.nonce) == (asking.peer_id, nonce)
            proof = ListProof.of(published.chunk_lists[KEYFRAME_ID], receipt.chunk_index)
            verified = a.relay._versions.known(0)
            assert verified is not None
            assert not convicts(receipt, asking.peer_id, verified.keyframe, proof)
        assert len(asking.of_kind("receipt")) == 1
