"""Ask for the receipt of a wrong chunk, report its sender to the coordinator, and give receipts for own chunks.

A relay signs nothing while all is well: a receipt is given on request, for a chunk that its receiver found wrong.
Signing each chunk would cost several times as much as checking it, and would convict no relay more: one that lies about
what it sent can put the signed hash into its receipt either way.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Protocol

import structlog

from peer.links.neighbours import EncodingKey
from peer.relay.codec import key_of
from peer.relay.core.state.actions import Accuse
from peer.relay.core.state.events import LinkId
from peer.relay.link import RelayLink
from rollcast.runtime.errors import RollcastError, Unreachable
from rollcast.wire.identity.identity import Identity
from rollcast.wire.ids import ChunkIndex, RunId
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.chunks import BytesLike, ListProof, blake3_hash, chunk_list_hash
from rollcast.wire.versions.receipts import NONCE_BYTES, ChunkReceipt, sign_receipt, verify_receipt

log = structlog.get_logger()

RECEIPT_WAIT_S = 5.0
"""Longest wait for the sender's receipt, in seconds; its link carries nothing else meanwhile."""


class Chunks(Protocol):
    """The chunks and chunk lists that this process holds."""

    def chunk_list(self, key: EncodingKey) -> bytes | None:
        """Return the verified chunk list of an encoding; None if it is not here."""


class Accusations:
    """The accusations of one relay, and its receipts.

    Args:
        identity: signs receipts.
        read: returns a chunk that this process holds; None if it does not.
        accuse: reports to the coordinator.
    """

    def __init__(
        self,
        run_id: RunId,
        identity: Identity,
        chunks: Chunks,
        read: Callable[[EncodingKey, ChunkIndex], Awaitable[BytesLike | None]],
        accuse: Callable[[pb.Accusation], None],
    ) -> None:
        self._run_id = run_id
        self._identity = identity
        self._chunks = chunks
        self._read = read
        self._accuse = accuse
        self._waiting: dict[LinkId, asyncio.Future[pb.Signed]] = {}

    # ------------------------------------------------------------ of others

    async def accuse(self, action: Accuse, link: RelayLink | None) -> None:
        """Report the sender of a wrong chunk, with its receipt if it gives one that fits; then close the link."""
        proven = False
        accusation = pb.Accusation(
            culprit_peer_id=action.peer_id,
            version=action.key.version,
            encoding_id=action.key.encoding_id,
            chunk_index=action.index,
            reason=action.reason,
        )
        if link is not None and action.chunk_hash:
            try:
                proven = await self._prove(accusation, action, link)
            except (RollcastError, TimeoutError) as error:
                log.info("no receipt for a wrong chunk", peer=action.peer_id, reason=str(error))
        log.warning("peer accused", culprit=action.peer_id, version=action.key.version, proven=proven)
        self._accuse(accusation)
        if link is not None:
            link.close(action.reason)

    def receipt_received(self, link: LinkId, receipt: pb.Signed) -> None:
        """Take an answer; one that was not asked for is ignored."""
        waiting = self._waiting.get(link)
        if waiting is not None and not waiting.done():
            waiting.set_result(receipt)

    def link_lost(self, link: LinkId) -> None:
        """Stop waiting for a receipt: the link ended."""
        waiting = self._waiting.get(link)
        if waiting is not None and not waiting.done():
            waiting.set_exception(Unreachable("the link ended before a receipt came"))

    async def _prove(self, accusation: pb.Accusation, action: Accuse, link: RelayLink) -> bool:
        """Add the sender's receipt to the accusation if it states what came. Returns whether it does."""
        hashes = self._chunks.chunk_list(action.key)
        if hashes is None:
            return False
        nonce = os.urandom(NONCE_BYTES)
        receipt = await self._ask(accusation, nonce, link)
        named = (accusation.version, accusation.encoding_id, accusation.chunk_index)
        stated = verify_receipt(receipt, action.peer_id)
        if (stated.version, stated.encoding_id, stated.chunk_index) != named:
            return False
        if (stated.chunk_hash, stated.receiver, stated.nonce) != (action.chunk_hash, self._identity.peer_id, nonce):
            return False  # it denies what it sent
        proof = ListProof.of(hashes, action.index)
        accusation.receipt.CopyFrom(receipt)
        accusation.list_block, accusation.list_block_hashes = proof.block, proof.block_hashes
        return True

    async def _ask(self, accusation: pb.Accusation, nonce: bytes, link: RelayLink) -> pb.Signed:
        request = pb.ReceiptRequest(
            version=accusation.version,
            encoding_id=accusation.encoding_id,
            chunk_index=accusation.chunk_index,
            nonce=nonce,
        )
        waiting: asyncio.Future[pb.Signed] = asyncio.get_running_loop().create_future()
        self._waiting[link.link_id] = waiting
        try:
            link.link.send(pb.LinkMessage(receipt_request=request))
            async with asyncio.timeout(RECEIPT_WAIT_S):
                return await waiting
        finally:
            del self._waiting[link.link_id]

    # ------------------------------------------------------------ of this process

    async def give_receipt(self, link: RelayLink, request: pb.ReceiptRequest) -> None:
        """State what this process sends as a chunk, once a link: its receiver gives the link up afterwards.

        The chunk is read and hashed again, so that a machine whose memory changed it says so.
        """
        key, index = key_of(request), ChunkIndex(request.chunk_index)
        hashes = self._chunks.chunk_list(key)
        if hashes is None or not link.may_ask_for_receipt():
            return
        payload = await self._read(key, index)
        if payload is None:
            return
        receipt = ChunkReceipt(
            self._run_id,
            key.version,
            key.encoding_id,
            index,
            blake3_hash(payload),
            chunk_list_hash(hashes),
            link.link.peer_id,
            request.nonce,
        )
        log.warning("a receiver found a chunk wrong", peer=link.link.peer_id, version=key.version, chunk=index)
        link.link.send(pb.LinkMessage(receipt=sign_receipt(receipt, self._identity)))
