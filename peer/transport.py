"""Chunk links between two processes, whatever carries them.

A link is a pair of streams of frames (rollcast/wire/link.py) between two authenticated ends. Either end may send
anything at any time: the direction of data does not depend on who dialled.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from rollcast import __version__
from rollcast.runtime.errors import MalformedMessage, ProtocolMismatch, RollcastError, Unreachable, WrongKey
from rollcast.runtime.waits import deadline
from rollcast.wire.chunks import BytesLike
from rollcast.wire.ids import PeerId, RunId
from rollcast.wire.limits import TEXT_LENGTH_MAX
from rollcast.wire.link import LinkFrame, LinkMessageFrame
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.protocol import agree_with, range_to_pb
from rollcast.wire.tls import Caller, TlsCredentials

_GOODBYE_S = 1.0


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """Deadlines and bounds of links; every one closes the link or refuses it.

    Args:
        dial_timeout_s: from the dial to the authenticated, greeted link.
        handshake_timeout_s: a caller's TLS handshake, and then its request line and headers.
        hello_timeout_s: the other end's greeting.
        write_timeout_s: until the other end takes a frame.
        silence_timeout_s: a host that does not even acknowledge is given up (by the kernel's own probes).
        links_most: accepted links open at a time.
    """

    dial_timeout_s: float = 10.0
    handshake_timeout_s: float = 5.0
    hello_timeout_s: float = 5.0
    write_timeout_s: float = 30.0
    silence_timeout_s: float = 30.0
    links_most: int = 512


class LinkClosed(Exception):
    """The link ended; what was on its way is lost."""


class Link(Protocol):
    """One open link. One task may send while another receives."""

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
    def bytes_sent(self) -> int:
        """Bytes of frames so far."""

    @property
    def bytes_received(self) -> int:
        """Bytes of frames so far."""

    async def send(self, message: pb.LinkMessage) -> None:
        """Send a control message; returns once the transport has room for more.

        Raises:
            LinkClosed: the link ended, or the other end takes nothing.
        """

    async def send_chunk(self, version: int, encoding_id: int, index: int, payload: BytesLike) -> None:
        """Send a chunk; as ``send``."""

    async def receive(self) -> LinkFrame:
        """The next frame.

        Raises:
            LinkClosed: the link ended.
            MalformedMessage: the other end sends nonsense.
        """

    async def close(self) -> None:
        """End the link at once. May be called again."""


LinkHandler = Callable[[Link], Awaitable[None]]
Admission = Callable[[Caller], str]
"""Why a caller may not have a link; empty where it may. Roles and revocation are decided here."""


class ChunkTransport(Protocol):
    """Opens and accepts links."""

    async def start(self, on_link: LinkHandler) -> str:
        """Accept links; each is authenticated and greeted before it is handed to ``on_link``, and ends with it.

        Returns:
            host:port that others can dial; empty where they cannot.

        Raises:
            PortInUse: the address cannot be bound.
            ConfigError: the address that others should dial is not known.
        """

    async def dial(self, peer_id: PeerId, address: str) -> Link:
        """Open a link to exactly this peer.

        Raises:
            Unreachable: nobody answers there, or refuses.
            WrongKey: somebody else answers there.
            ProtocolMismatch: the two sides speak no common protocol version.
            WaitTimedOut: the dial took too long.
        """

    def renew(self, credentials: TlsCredentials) -> None:
        """Use a renewed certificate for links opened from now on; open ones stay."""

    async def close(self) -> None:
        """Stop accepting and end every link."""


async def greet(link: Link, run_id: RunId, limits: LinkLimits) -> None:
    """Exchange LinkHello, first of all messages, and agree on a protocol version.

    Raises:
        WrongKey: the other end belongs to another run.
        ProtocolMismatch: no common version; the message names the side to upgrade.
        MalformedMessage: the other end does not greet.
        Unreachable: the other end refuses us.
        WaitTimedOut: the other end says nothing.
        LinkClosed: the link ended.
    """
    hello = pb.LinkHello(protocol=range_to_pb(), run_id=run_id, software=f"rollcast {__version__}")
    async with deadline(limits.hello_timeout_s, f"{link.peer_id} to greet on a chunk link"):
        await link.send(pb.LinkMessage(hello=hello))
        first = await link.receive()
    if not isinstance(first, LinkMessageFrame):
        raise MalformedMessage(f"{link.peer_id} sent a chunk before its greeting")
    match first.message.WhichOneof("body"):
        case "hello":
            if first.message.hello.run_id != run_id:
                raise WrongKey(f"{link.peer_id} belongs to another run", fix="see which run its invite was for")
            agree_with(first.message.hello.protocol)
        case "error":
            raise refused(link.peer_id, first.message.error)
        case _:
            raise MalformedMessage(f"{link.peer_id} did not begin with a greeting")


def refused(peer_id: PeerId, error: pb.LinkError) -> RollcastError:
    """What the other end's LinkError means to us."""
    kind = ProtocolMismatch if error.code == ProtocolMismatch.code else Unreachable
    return kind(f"{peer_id} refused a chunk link", cause=f"{error.code} {error.what}")


async def refuse(link: Link, error: RollcastError) -> None:
    """Tell the other end what is wrong with it, and end the link."""
    await say_goodbye(link, error.code, error.what)


async def say_goodbye(link: Link, code: str, what: str) -> None:
    """End a link and tell the other end why, if it still listens."""
    message = pb.LinkMessage(error=pb.LinkError(code=code, what=what[:TEXT_LENGTH_MAX]))
    try:
        async with deadline(_GOODBYE_S, "a last message to be taken"):
            await link.send(message)
    except (LinkClosed, RollcastError):
        pass
    await link.close()
