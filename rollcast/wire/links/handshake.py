"""Begin a chunk link: the exchange is the same for both ends and for every kind of process.

A caller asks to upgrade an HTTPS request (mutual TLS 1.3) and sends nothing until the upgrade is granted. Then it sends
its greeting, and the other end answers with its own. Frames follow in both directions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from rollcast import __version__
from rollcast.runtime.errors import MalformedMessage, ProtocolMismatch, RollcastError, Unreachable, WrongKey
from rollcast.runtime.waits import deadline
from rollcast.wire.identity.certificates import Caller, caller_from_der
from rollcast.wire.ids import PeerId, RunId
from rollcast.wire.links.frames import LinkFrame, LinkMessageFrame
from rollcast.wire.links.receiver import LinkClosed
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.protocol import agree_with, range_to_pb

PATH = "/rollcast/link/2"
UPGRADE_HEADERS = {"Connection": "Upgrade", "Upgrade": "rollcast-link/2"}


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """Timeouts and bounds of links; a link that exceeds one is closed or refused.

    Args:
        dial_timeout_s: longest time from the dial to the authenticated, greeted link.
        handshake_timeout_s: longest time of a caller's TLS handshake, and again of its request line and headers.
        hello_timeout_s: longest time until the other end's greeting.
        write_timeout_s: longest time until the other end takes some of the waiting bytes.
        silence_timeout_s: time without an acknowledgement after which the kernel's own probes give a host up.
        links_most: most accepted links that are open at a time.
    """

    dial_timeout_s: float = 10.0
    handshake_timeout_s: float = 5.0
    hello_timeout_s: float = 5.0
    write_timeout_s: float = 30.0
    silence_timeout_s: float = 30.0
    links_most: int = 512


def caller_of(transport: asyncio.BaseTransport) -> Caller:
    """Return the caller that the other end's certificate names; TLS has verified it against the run CA.

    Raises:
        WrongKey: the other end showed no certificate, or one that names no caller.
    """
    tls = transport.get_extra_info("ssl_object")
    der = tls.getpeercert(binary_form=True) if tls is not None else None
    if der is None:
        raise WrongKey("the other end of a chunk link showed no certificate")
    return caller_from_der(der)


class GreetedStream(Protocol):
    """The part of a stream of frames that a greeting needs (see rollcast.wire.links.stream.LinkStream)."""

    def send(self, message: pb.LinkMessage) -> None: ...

    async def first_frame(self) -> LinkFrame: ...

    def close(self, reason: str, code: str = "") -> None: ...

    def end(self, reason: str, code: str = "") -> None: ...


def _pass(_hello: pb.LinkHello) -> None:
    """Accept any greeting: TLS has authenticated the other end already."""


async def greet(
    stream: GreetedStream,
    peer_id: PeerId,
    run_id: RunId,
    timeout_s: float,
    *,
    dialled: bool,
    certificate_der: bytes = b"",
    check: Callable[[pb.LinkHello], None] = _pass,
) -> None:
    """Exchange LinkHello, the caller first, and agree on a protocol version; a refusal is sent with its reason.

    Args:
        certificate_der: our certificate, if the stream itself shows none (no TLS); else empty.
        check: checks the other end's greeting before it is answered; the error that it raises is sent to the other end.

    Raises:
        WrongKey: the other end belongs to another run.
        ProtocolMismatch: no common version; the message names the side to upgrade.
        MalformedMessage: the other end's first frame is no greeting.
        Unreachable: the other end refused the link or closed it.
        WaitTimedOut: the other end sent nothing in time.
    """
    software = f"rollcast {__version__}"
    hello = pb.LinkMessage(
        hello=pb.LinkHello(protocol=range_to_pb(), run_id=run_id, software=software, certificate_der=certificate_der)
    )
    try:
        if dialled:
            stream.send(hello)
        async with deadline(timeout_s, f"{peer_id} to greet on a chunk link"):
            first = await stream.first_frame()
        if not isinstance(first, LinkMessageFrame) or not first.message.HasField("hello"):
            raise MalformedMessage(f"{peer_id} did not begin with a greeting")
        if first.message.hello.run_id != run_id:
            raise WrongKey(f"{peer_id} belongs to another run", fix="check which run its invite was for")
        agree_with(first.message.hello.protocol)
        check(first.message.hello)
        if not dialled:
            stream.send(hello)
    except LinkClosed as closed:
        raise _refused(peer_id, closed) from None
    except RollcastError as error:
        stream.close(error.what, error.code)
        raise
    except BaseException:
        stream.end("the link was abandoned")
        raise


def _refused(peer_id: PeerId, closed: LinkClosed) -> RollcastError:
    if closed.code == ProtocolMismatch.code:
        return ProtocolMismatch(f"{peer_id} refused a chunk link", cause=closed.reason)
    if closed.code:
        return Unreachable(f"{peer_id} refused a chunk link", cause=f"{closed.code} {closed.reason}")
    return Unreachable(f"{peer_id} closed the link", cause=closed.reason)
