"""Wrap one open link for the relay's shell: pass its frames on, and send one chunk at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from peer.links.transport import Link
from peer.relay.core.state.events import LinkId
from rollcast.wire.ids import PeerId, StripeId
from rollcast.wire.links.frames import LinkFrame
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.token_bucket import TokenBucket
from rollcast.wire.versions.chunks import BytesLike

# An honest peer announces each version once; versions are seconds apart, and a peer that was away gets the last few.
_ANNOUNCEMENTS_PER_S = 4.0
_ANNOUNCEMENTS_AT_ONCE = 64


class LinkOwner(Protocol):
    """Handles the events of a link (the relay)."""

    def received(self, link: RelayLink, frame: LinkFrame) -> None:
        """Handle a frame that came."""

    def sent(self, link: RelayLink, size_bytes: int) -> None:
        """Note that the last chunk given to the link has left."""

    def ended(self, link: RelayLink, reason: str) -> None:
        """Note that the link is closed or lost."""


class LinkWatcher(Protocol):
    """Learns from links at which addresses peers are. Called on the event loop; must not block."""

    def linked(self, link: Link) -> None:
        """Note that a link is open and used."""

    def unlinked(self, link: Link) -> None:
        """Note that a link has ended."""

    def not_reached(self, peer_id: PeerId) -> None:
        """Note that no known address of this peer answered."""

    def records_received(self, link: Link, records: pb.PeerRecords) -> None:
        """Take the records that the other end sent; they are not verified yet."""


class RelayLink:
    """See peer.links.transport.LinkReceiver."""

    def __init__(self, link_id: LinkId, link: Link, owner: LinkOwner) -> None:
        self.link_id = link_id
        self.link = link
        self.closed_by_us = False
        self._owner = owner
        self._under_way_bytes = 0
        self._gave_receipt = False
        self._announcements = TokenBucket(_ANNOUNCEMENTS_PER_S, _ANNOUNCEMENTS_AT_ONCE)

    def may_announce(self, now: float) -> bool:
        """Count an announcement; return False if there were too many, because each costs a millisecond to verify.

        The run's own processes may always announce: the learner waits until the origin holds a version, and would wait
        in vain for the answer to an announcement that was left out.
        """
        return self.link.role in ("learner", "origin") or self._announcements.take(1, now) <= 0.0

    def may_ask_for_receipt(self) -> bool:
        """Return whether the other end has not asked for a receipt before."""
        first, self._gave_receipt = not self._gave_receipt, True
        return first

    def send_chunk(self, key: tuple[int, int], index: int, payload: BytesLike, stripe: StripeId) -> None:
        """Send one chunk; ``LinkOwner.sent`` follows once the socket has room again."""
        self._under_way_bytes = len(payload)
        self.link.send_chunk(key[0], key[1], index, payload, stripe)

    def frames(self, frames: Sequence[LinkFrame]) -> None:
        """See LinkReceiver."""
        for frame in frames:
            if self.closed_by_us:
                return
            self._owner.received(self, frame)

    def drained(self) -> None:
        """See LinkReceiver."""
        size_bytes, self._under_way_bytes = self._under_way_bytes, 0
        if size_bytes:
            self._owner.sent(self, size_bytes)

    def closed(self, reason: str, code: str) -> None:
        """See LinkReceiver."""
        self._owner.ended(self, reason if code in ("", "unknown") else f"{code} {reason}")

    def close(self, reason: str, code: str = "") -> None:
        """Close the link."""
        self.closed_by_us = True
        self.link.close(reason, code)
