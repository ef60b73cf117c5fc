"""Chunk links between two processes, whatever carries them.

A link is a pair of streams of frames (rollcast/wire/links/frames.py) between two authenticated ends. Either end may
send
anything at any time: the direction of data does not depend on who dialled. Links call back, and nothing waits inside
them: at a chunk a millisecond, a task that wakes per frame costs more than the frame.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from rollcast.wire.identity.tls import Caller, TlsCredentials
from rollcast.wire.ids import PeerId, StripeId
from rollcast.wire.links.handshake import LinkLimits
from rollcast.wire.links.receiver import LinkReceiver
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.chunks import BytesLike

__all__ = ["Admission", "ChunkTransport", "Link", "LinkHandler", "LinkLimits", "LinkMeasurement", "LinkReceiver"]


@dataclass(frozen=True, slots=True)
class LinkMeasurement:
    """What is known of a link's way.

    Args:
        rtt_s: smallest round trip lately; 0: not known.
        unsent_bytes: given to the link and not on the wire yet.
        congestion_control: of our socket; empty: not known.
        sent_bytes_per_second: while chunks waited to be sent on it; 0: not measured.
        received_bytes_per_second: of the last second and more in which bytes kept coming; 0: not measured.
    """

    rtt_s: float
    unsent_bytes: int
    congestion_control: str
    sent_bytes_per_second: float = 0.0
    received_bytes_per_second: float = 0.0


class Link(Protocol):
    """One open link. To be used on the event loop only; nothing here waits."""

    @property
    def peer_id(self) -> PeerId:
        """Who the other end proved to be."""

    @property
    def role(self) -> str:
        """What its certificate says it is."""

    @property
    def dialled(self) -> bool:
        """Whether we dialled."""

    @property
    def transport(self) -> str:
        """What carries it: direct, punched, p2p, relayed, mirror."""

    @property
    def lan(self) -> bool:
        """Whether both ends are in one local network."""

    @property
    def bytes_sent(self) -> int:
        """Bytes of frames so far."""

    @property
    def bytes_received(self) -> int:
        """Bytes of frames so far."""

    def start(self, receiver: LinkReceiver) -> None:
        """Deliver to ``receiver`` from now on, beginning with what came before."""

    def send(self, message: pb.LinkMessage) -> None:
        """Send a control message. An other end that lets too much pile up loses the link.

        Raises:
            MalformedMessage: it is longer than receivers accept.
        """

    def send_chunk(self, version: int, encoding_id: int, index: int, payload: BytesLike, stripe: StripeId) -> None:
        """Send a chunk; the next one is due after ``drained``. A link that ended takes it and does nothing.

        Raises:
            MalformedMessage: the payload is empty or longer than receivers accept.
        """

    def pause_reading(self) -> None:
        """Deliver nothing more; the other end is held back once the buffers on the way are full."""

    def resume_reading(self) -> None:
        """Go on delivering."""

    def measure(self) -> LinkMeasurement:
        """Current figures."""

    def close(self, reason: str, code: str = "") -> None:
        """End the link, telling the other end why unless ``reason`` is empty. ``closed`` follows, without the code."""


LinkHandler = Callable[[Link], LinkReceiver]
"""Called once a link is authenticated and greeted; the transport starts the link with what it returns."""
Admission = Callable[[Caller], str]
"""Why a caller may not have a link; empty where it may. Roles and revocation are decided here."""


class ChunkTransport(Protocol):
    """Opens and accepts links."""

    async def start(self, on_link: LinkHandler) -> str:
        """Accept links; each is authenticated, greeted, handed to ``on_link`` and started.

        Returns:
            host:port that others can dial; empty where they cannot.

        Raises:
            PortInUse: the address cannot be bound.
            ConfigError: the address that others should dial is not known, or a setting cannot be kept.
        """

    async def dial(self, peer_id: PeerId, address: str) -> Link:
        """Open a link to exactly this peer; the caller starts it.

        Raises:
            Unreachable: nobody answers there, or refuses.
            WrongKey: somebody else answers there.
            ProtocolMismatch: the two sides speak no common protocol version.
            MalformedMessage: it does not greet.
            WaitTimedOut: the dial took too long.
        """

    def renew(self, credentials: TlsCredentials) -> None:
        """Use a renewed certificate for links opened from now on; open ones stay."""

    async def close(self) -> None:
        """Stop accepting and end every link."""
