"""Send messages and chunks for the relay's core."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import assert_never

from peer.links.gate import NetworkGate
from peer.links.neighbours import EncodingKey
from peer.relay.codec import message_of
from peer.relay.core.state.actions import (
    SendAnnouncement,
    SendCancel,
    SendChunk,
    SendChunkList,
    SendCredit,
    SendDecline,
    SendGot,
    SendHave,
    SendRequest,
    SendWant,
)
from peer.relay.core.state.events import ChunkSent, LinkId
from peer.relay.link import RelayLink
from peer.relay.versions import RelayVersions
from rollcast.wire.ids import ChunkIndex, Version
from rollcast.wire.limits import CREDIT_CHUNKS_MAX
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.chunks import BytesLike

Send = (
    SendChunk
    | SendWant
    | SendRequest
    | SendHave
    | SendCredit
    | SendGot
    | SendDecline
    | SendCancel
    | SendAnnouncement
    | SendChunkList
)


class RelaySending:
    """Carries out the send actions of one relay's core.

    Args:
        links: the open links, as the relay keeps them.
        sent: called for a chunk that cannot be sent; its receiver requests it elsewhere, as when a chunk is late.
        spawn: runs a coroutine that waits for the disk.
        soon: calls a function once the events that are here already have been handled.
    """

    def __init__(
        self,
        links: Mapping[LinkId, RelayLink],
        versions: RelayVersions,
        *,
        sent: Callable[[ChunkSent], None],
        spawn: Callable[[Coroutine[None, None, None]], None],
        soon: Callable[[Callable[[], None]], object],
    ) -> None:
        self.gate = NetworkGate()
        """The owner's limits on chunks."""
        self._links = links
        self._versions = versions
        self._sent = sent
        self._spawn = spawn
        self._soon = soon
        self._credits: dict[tuple[LinkId, EncodingKey], list[int]] = {}

    def send(self, action: Send) -> None:
        """Carry out an action; it has no effect if its link is gone."""
        match action:
            case SendChunk():
                self._chunk(action)
            case SendCredit():
                self._credit(action)
            case SendWant() | SendRequest() | SendHave() | SendGot() | SendDecline() | SendCancel():
                self.post(action.link, message_of(action))
            case SendAnnouncement(link=link, version=version):
                self._announcement(link, version)
            case SendChunkList(link=link, key=key):
                self._chunk_list(link, key)
            case _:
                assert_never(action)

    def post(self, link_id: LinkId, message: pb.LinkMessage) -> None:
        """Send a control message, unless the link is gone."""
        link = self._links.get(link_id)
        if link is not None:
            link.link.send(message)

    def _credit(self, action: SendCredit) -> None:
        """Send reports together: small chunks arrive several at a time, and each would cost both ends a message."""
        if not self._credits:
            self._soon(self._send_credits)
        self._credits.setdefault((action.link, action.key), []).extend(action.indices)

    def _send_credits(self) -> None:
        credits, self._credits = self._credits, {}
        for (link, key), indices in credits.items():
            for first in range(0, len(indices), CREDIT_CHUNKS_MAX):
                part = tuple(indices[first : first + CREDIT_CHUNKS_MAX])
                self.post(link, message_of(SendCredit(link, key, part)))

    def _chunk(self, action: SendChunk) -> None:
        if not self.gate.send:
            self._sent(ChunkSent(action.link))
            return
        if (payload := self._versions.chunk(action.key, action.index)) is None:
            self._spawn(self._from_disk(action))
        else:
            self._payload(action, payload)

    async def _from_disk(self, action: SendChunk) -> None:
        payload = await self.read(action.key, action.index)
        if payload is None:
            self._sent(ChunkSent(action.link))
        else:
            self._payload(action, payload)

    def _payload(self, action: SendChunk, payload: BytesLike) -> None:
        link = self._links.get(action.link)
        if link is not None:
            link.send_chunk((action.key.version, action.key.encoding_id), action.index, payload, action.stripe)

    async def read(self, key: EncodingKey, index: ChunkIndex) -> BytesLike | None:
        """Return the bytes that this process sends as a chunk; None if it does not hold them."""
        payload = self._versions.chunk(key, index)
        return payload if payload is not None else await self._versions.worker.ahead.read(key, index)

    def _announcement(self, link: LinkId, version: Version) -> None:
        announcement = self._versions.announcement(version)
        if announcement is not None:
            self.post(link, pb.LinkMessage(announcement=announcement))

    def _chunk_list(self, link: LinkId, key: EncodingKey) -> None:
        hashes = self._versions.chunk_list(key)
        if hashes is not None:
            body = pb.ChunkList(version=key.version, encoding_id=key.encoding_id, hashes=hashes)
            self.post(link, pb.LinkMessage(chunk_list=body))
