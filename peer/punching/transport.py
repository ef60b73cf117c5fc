"""Open chunk links through holes in two routers: direct links, except that both ends dial (docs/reachability.md)."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable
from typing import assert_never

import structlog

from peer.config import LinkConfig
from peer.links.direct import socket_options
from peer.links.stream_link import StreamLink
from peer.links.traffic import LinkTraffic
from peer.links.transport import Admission, Link, LinkHandler, LinkLimits
from peer.punching.core import (
    ANSWER_S,
    DEADLINE_MOST_S,
    Action,
    Ask,
    Begin,
    Event,
    Failed,
    FailWaiting,
    GaveUp,
    Order,
    Ordered,
    PunchCore,
    Refused,
    Report,
    SessionLost,
    SessionOpened,
    Tick,
    Wanted,
)
from peer.punching.core import Opened as HoleOpened
from peer.punching.holes import Holes, Opened
from peer.punching.port import PunchPort
from rollcast.runtime.background import Background
from rollcast.runtime.errors import MalformedMessage, RollcastError, Unreachable
from rollcast.runtime.waits import deadline, result_or_released
from rollcast.wire.identity.identity import public_key_of
from rollcast.wire.identity.tls import TlsCredentials
from rollcast.wire.ids import PeerId, RunId
from rollcast.wire.limits import TEXT_LENGTH_MAX
from rollcast.wire.proto import rollcast_pb2 as pb

log = structlog.get_logger()

_ANY = {4: "0.0.0.0", 6: "::"}
_UNWANTED = "no caller waits for this link any more"
_LATE_S = 1.0  # allowance for a busy event loop, on top of all deadlines


class PunchTransport:
    """See peer.links.transport.ChunkTransport; ``dial`` needs no address. Make it inside a running event loop.

    Args:
        open_port: opens the port that holes are punched from over IPv4 (4) or IPv6 (6); called when it is first needed.
    """

    def __init__(
        self,
        config: LinkConfig,
        credentials: TlsCredentials,
        run_id: RunId,
        admit: Admission,
        limits: LinkLimits | None = None,
        *,
        traffic: LinkTraffic,
        open_port: Callable[[int], PunchPort] | None = None,
    ) -> None:
        limits = limits or LinkLimits()
        self._holes = Holes(
            credentials,
            run_id,
            admit,
            limits=limits,
            options=socket_options(config, limits),
            open_port=open_port or (lambda version: PunchPort(_interface(config.host, version))),
        )
        self._traffic = traffic
        self._core = PunchCore()
        self._on_link: LinkHandler | None = None
        self._send: Callable[[pb.PeerMessage], None] = lambda _message: None
        self._waiting: dict[PeerId, asyncio.Future[Link]] = {}
        self._background = Background("hole-punching attempt failed")
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def port(self, version: int) -> PunchPort:
        """Return the port that holes are punched from over IPv4 (4) or IPv6 (6).

        Raises:
            OSError: no port can be opened.
        """
        return self._holes.port(version)

    async def start(self, on_link: LinkHandler) -> str:
        self._on_link = on_link
        return ""

    async def dial(self, peer_id: PeerId, address: str = "") -> Link:
        if peer_id in self._waiting:
            raise Unreachable(f"cannot punch a hole to {peer_id}: an attempt is under way")
        wanted: asyncio.Future[Link] = asyncio.get_running_loop().create_future()
        self._waiting[peer_id] = wanted
        self._handle(Wanted(peer_id))
        try:
            async with deadline(ANSWER_S + DEADLINE_MOST_S + _LATE_S, f"a hole to {peer_id}"):
                return await result_or_released(wanted, lambda link: link.close(_UNWANTED))
        finally:
            del self._waiting[peer_id]
            self._handle(GaveUp(peer_id))

    def renew(self, credentials: TlsCredentials) -> None:
        self._holes.renew(credentials)

    async def close(self) -> None:
        self._closed = True
        self.lost()
        await self._background.end()
        if self._timer is not None:
            self._timer.cancel()
        await self._holes.close()

    # ------------------------------------------------------------- the coordinator's part

    def opened(self, send: Callable[[pb.PeerMessage], None]) -> None:
        """Handle a new session with the coordinator; ``send`` queues messages in it."""
        self._send = send
        self._handle(SessionOpened())

    def lost(self) -> None:
        """Handle the end of the session: attempts under way continue, and none begins."""
        self._handle(SessionLost())

    def punch_received(self, punch: pb.Punch) -> None:
        """Handle the coordinator's order or refusal.

        Raises:
            MalformedMessage, WrongKey: the message is invalid.
        """
        event = event_of(punch)
        if not self._closed:
            self._handle(event)

    # ------------------------------------------------------------- inside

    def _handle(self, event: Event) -> None:
        loop = asyncio.get_running_loop()
        for action in self._core.handle(event, loop.time()):
            self._do(action)
        if self._timer is not None:
            self._timer.cancel()
        due_s = self._core.next_deadline_s
        self._timer = None if due_s is None else loop.call_at(due_s, self._handle, Tick())

    def _do(self, action: Action) -> None:
        match action:
            case Ask(peer_id):
                self._send(pb.PeerMessage(punch_request=pb.PunchRequest(peer_id=peer_id)))
            case Begin(order):
                self._background.spawn(self._punch(order))
            case Report(punch_id, opened, seconds):
                outcome = pb.PunchOutcome(punch_id=punch_id, opened=opened, seconds=seconds)
                self._send(pb.PeerMessage(punch_outcome=outcome))
            case FailWaiting(peer_id, error):
                wanted = self._waiting.get(peer_id)
                if wanted is not None and not wanted.done():
                    wanted.set_exception(error)
            case _:
                assert_never(action)

    async def _punch(self, order: Order) -> None:
        try:
            found = await self._holes.punch(order)
        except RollcastError as error:
            level = log.debug if order.asked else log.info  # the caller of ``dial`` logs it
            level("hole punching failed", peer=order.peer_id, reason=error.what, cause=error.cause)
            self._handle(Failed(order.punch_id, error))
        else:
            self._deliver(order, found)
            self._handle(HoleOpened(order.punch_id))

    def _deliver(self, order: Order, found: Opened) -> None:
        stream, caller = found
        traffic = self._traffic.of(stream.remote_address)
        link = StreamLink(stream, caller, traffic, dialled=order.asked, transport="punched")
        wanted = self._waiting.get(order.peer_id) if order.asked else None
        if wanted is not None and not wanted.done():
            wanted.set_result(link)
        elif order.asked or self._on_link is None:
            link.close(_UNWANTED)
        else:
            link.start(self._on_link(link))


def _interface(host: str, version: int) -> str:
    """Return the interface of the port for holes: that of direct links if it is of this version and not loopback."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return _ANY[version]
    return _ANY[version] if address.is_loopback or address.version != version else host


def event_of(punch: pb.Punch) -> Ordered | Refused:
    """Return the event of the coordinator's message, whose form is checked.

    Raises:
        MalformedMessage, WrongKey: the message is invalid.
    """
    public_key_of(punch.peer_id)
    peer_id = PeerId(punch.peer_id)
    if punch.refused:
        return Refused(peer_id, punch.refused[:TEXT_LENGTH_MAX])
    if not 0.0 < punch.deadline_s <= DEADLINE_MOST_S:
        raise MalformedMessage(f"a hole with a deadline of {punch.deadline_s:g} s")
    return Ordered(
        Order(
            punch_id=punch.punch_id,
            peer_id=peer_id,
            address=punch.address[:TEXT_LENGTH_MAX],
            serves=punch.serves,
            asked=punch.asked,
            deadline_s=punch.deadline_s,
            address_ipv6=punch.address_ipv6[:TEXT_LENGTH_MAX],
        )
    )
