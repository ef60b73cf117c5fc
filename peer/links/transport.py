"""Define chunk links between two processes, whichever transport carries them.

A link is a pair of streams of frames (rollcast/wire/links/frames.py) between two authenticated ends. Either end may
send any frame at any time, whichever end dialled. Links call back instead of being awaited: at a chunk a millisecond, a
task that wakes for each frame costs more than the frame.
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
    """The measured properties of a link.

    Args:
        rtt_s: smallest round trip lately; 0: not known.
        unsent_bytes: bytes given to the link that are not on the wire yet.
        congestion_control: the algorithm of this end's socket; empty: not known.
        sent_bytes_per_second: rate while chunks waited to be sent on it; 0: not measured.
        received_bytes_per_second: rate of the last stretch of a second or more in which bytes kept coming; 0: not
            measured.
        lost_share: share of the TCP segments sent that were lost lately; 0: none, or not measured.
        window_limited_share: share of the time with bytes to send in which the other end's receive window was full.
        slow: whether it carries less than a tenth of what it carried before, although bytes wait to be sent on it.
    """

    rtt_s: float
    unsent_bytes: int
    congestion_control: str
    sent_bytes_per_second: float = 0.0
    received_bytes_per_second: float = 0.0
    lost_share: float = 0.0
    window_limited_share: float = 0.0
    slow: bool = False


class Link(Protocol):
    """One open link. Its methods are called on the event loop and return at once."""

    @property
    def peer_id(self) -> PeerId:
        """Return the id that the other end proved with its key."""

    @property
    def role(self) -> str:
        """Return the role in the other end's certificate."""

    @property
    def dialled(self) -> bool:
        """Return whether this process dialled."""

    @property
    def transport(self) -> str:
        """Return what carries the link: direct, punched, p2p, relayed or mirror."""

    @property
    def lan(self) -> bool:
        """Return whether both ends are in one local network."""

    @property
    def bytes_sent(self) -> int:
        """Return the bytes of frames sent so far."""

    @property
    def bytes_received(self) -> int:
        """Return the bytes of frames received so far."""

    def start(self, receiver: LinkReceiver) -> None:
        """Deliver frames to ``receiver`` from now on, beginning with those that came before."""

    def send(self, message: pb.LinkMessage) -> None:
        """Send a control message. The link is closed if the other end lets too many bytes pile up.

        Raises:
            MalformedMessage: it is longer than receivers accept.
        """

    def send_chunk(self, version: int, encoding_id: int, index: int, payload: BytesLike, stripe: StripeId) -> None:
        """Send a chunk; the next one is due after ``drained``. A link that ended ignores it.

        Raises:
            MalformedMessage: the payload is empty or longer than receivers accept.
        """

    def pause_reading(self) -> None:
        """Stop delivering frames; the other end cannot send more once the buffers on the way are full."""

    def resume_reading(self) -> None:
        """Deliver frames again."""

    def measure(self) -> LinkMeasurement:
        """Return the current measurements."""

    def close(self, reason: str, code: str = "") -> None:
        """Close the link, with a reason for the other end unless it is empty. ``closed`` follows, without the code."""


LinkHandler = Callable[[Link], LinkReceiver]
"""Called once a link is authenticated and greeted; the transport starts the link with what it returns."""
Admission = Callable[[Caller], str]
"""Returns why a caller may not have a link; empty if it may. Roles and revocation are decided here."""


class ChunkTransport(Protocol):
    """Opens and accepts links."""

    async def start(self, on_link: LinkHandler) -> str:
        """Accept links; each is authenticated, greeted, passed to ``on_link`` and started.

        Returns:
            host:port that other processes can dial; empty if they cannot.

        Raises:
            PortInUse: the address cannot be bound.
            ConfigError: the address that other processes should dial is not known, or a setting cannot be applied.
        """

    async def dial(self, peer_id: PeerId, address: str) -> Link:
        """Open a link to exactly this peer; the caller starts it.

        Raises:
            Unreachable: no process answers there, or it refuses.
            WrongKey: another process answers there.
            ProtocolMismatch: the two ends have no common protocol version.
            MalformedMessage: the other end sends no valid greeting.
            WaitTimedOut: the dial took too long.
        """

    def renew(self, credentials: TlsCredentials) -> None:
        """Use a renewed certificate for links opened from now on; open ones stay."""

    async def close(self) -> None:
        """Stop accepting and end every link."""
