"""Accept and open links with the libp2p host of a peer at work, by dialling or through relays (trio)."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import trio
from libp2p.connection_types import ConnectionType
from libp2p.peer.id import ID
from libp2p.security.noise.exceptions import PeerIDMismatchesPubkey
from multiaddr import Multiaddr

from peer.links.addresses import CircuitAddress, P2pAddress
from peer.p2p.circuits.allowance import Allowance
from peer.p2p.circuits.book import CircuitBook, CircuitCaps
from peer.p2p.circuits.client import CircuitClient
from peer.p2p.circuits.dht_key import Found
from peer.p2p.circuits.relay import CircuitRelay
from peer.p2p.circuits.reservations import Reservations
from peer.p2p.circuits.wire import HOP, STOP, open_stream, read_exactly
from peer.p2p.connection_gate import ConnectionGate
from peer.p2p.streams.buffers import LinkBuffers
from peer.p2p.streams.lanes import Lanes, close_quietly
from peer.p2p.streams.limits import HostLimits
from peer.p2p.streams.opening import OPENING_BYTES, PROTOCOL, TOKEN_BYTES, LaneName, encode_opening, parse_opening
from rollcast.runtime.errors import RollcastError, Unreachable, WrongKey
from rollcast.wire.ids import PeerId

if TYPE_CHECKING:
    from peer.p2p.circuits.dht import Dht

_TIDY_S = 30.0
# A link has two lanes. A peer that has not shown a certificate of the run has one link to show it on. A member may open
# more, because links are replaced, but not so many that other members find no room.
_STRANGERS_LANES_MOST = 2
_MEMBERS_LANES_MOST = 16


@dataclass(frozen=True, slots=True)
class OpenLink:
    """A link whose two lanes are open and from which nothing has been read yet.

    Args:
        remote_address: IP address of the other end; empty: not known.
        socket: TCP socket of the connection that carries the frames of this end; None: something else carries them.
        relayed: whether the link passes through a relay; ``remote_address`` is the relay's then.
    """

    peer_id: PeerId
    buffers: LinkBuffers
    remote_address: str
    socket: Any
    relayed: bool


class HostUser(Protocol):
    """The event loop's side of a host. All its methods are called in the host's thread."""

    def buffers(self) -> LinkBuffers:
        """Return the buffers of a new link."""

    def accepted(self, link: OpenLink) -> None:
        """Take a link that another peer opened."""

    def certificate(self) -> bytes:
        """Return this peer's certificate of the run, in DER form."""

    def judge(self, peer_id: PeerId, certificate_der: bytes, answer: Callable[[bool], None]) -> None:
        """Check that a certificate is of the run and names this peer; ``answer`` may be called in any thread."""

    def reserved(self, circuits: tuple[str, ...]) -> None:
        """Take the addresses at which this peer can be reached through relays now."""

    def found(self, found: Found) -> None:
        """Take the members that the DHT names, and their addresses."""

    def pass_on(self, grant: Callable[[int], None]) -> None:
        """Call ``grant`` with another portion to pass on for others, sooner or later and in any thread."""


@dataclass(slots=True)
class _Lane:
    stream: Any
    done: trio.Event


class Host:
    """The links of one running libp2p host; call ``serve`` and ``dial``.

    Args:
        host: a running libp2p host.
        wake: returns a function that calls the given one in this thread and may be called from any thread.
        caps: limits on what is passed on for others; None: nothing is passed on.
        dht_key: key of the run in the table of its members; None: no table is kept.
    """

    def __init__(
        self,
        host: Any,
        limits: HostLimits,
        user: HostUser,
        nursery: trio.Nursery,
        wake: Callable[[Callable[[], None]], Callable[[], None]],
        caps: CircuitCaps | None = None,
        dht_key: bytes | None = None,
    ) -> None:
        self._host = host
        self._own_id = PeerId(str(host.get_id()))
        self._limits = limits
        self._user = user
        self._nursery = nursery
        self._wake = wake
        self._waiting: dict[tuple[PeerId, bytes], tuple[LaneName, _Lane]] = {}
        self._lanes: Counter[PeerId] = Counter()  # lanes that others opened
        self._links = 0
        self.gate = ConnectionGate(host, limits, user.judge, nursery, wake)
        self._circuits = CircuitClient(host, user.certificate, self._own_id, limits.opening_timeout_s)
        self.reservations = Reservations(self._circuits.reserve, self._reserved, nursery, random.SystemRandom().random)
        self.relay = self._make_relay(caps) if caps is not None else None
        self.dht = self._make_dht(dht_key) if dht_key is not None else None

    def _make_relay(self, caps: CircuitCaps) -> CircuitRelay:
        allowance = Allowance(lambda: self._user.pass_on(allowance.grant), self._wake)
        return CircuitRelay(self._host, CircuitBook(caps), allowance, self.gate.policy.is_member, self._limits)

    def _make_dht(self, key: bytes) -> Dht:
        from peer.p2p.circuits.dht import Dht  # imports much of libp2p, and few peers use it

        is_member = self.gate.policy.is_member
        dht = Dht(
            self._host, key, connection_to=self._circuits.connection_to, is_member=is_member, found=self._user.found
        )
        self._nursery.start_soon(dht.run)
        return dht

    def _reserved(self, relays: tuple[P2pAddress, ...]) -> None:
        self._user.reserved(tuple(str(CircuitAddress(relay, self._own_id)) for relay in relays))

    async def serve(self) -> None:
        """Accept links, and close what strangers leave open, until cancelled."""
        self._host.set_stream_handler(PROTOCOL, self._lane_opened)
        self._nursery.start_soon(self._tidy)
        await self.gate.serve(self._in_use)

    async def _tidy(self) -> None:
        """Discard the records of connections that have ended, because peers come and go for weeks."""
        while True:
            await trio.sleep(_TIDY_S)
            self._circuits.discard_closed()
            if self.relay is not None:
                self.relay.discard_closed()

    def _in_use(self, connection: Any) -> bool:
        if self._circuits.holds(connection) or (self.relay is not None and self.relay.holds(connection)):
            return True
        return any(stream.get_protocol() in (PROTOCOL, HOP, STOP) for stream in connection.get_streams())

    async def dial(self, peer_id: PeerId, address: P2pAddress | CircuitAddress) -> OpenLink:
        """Return a link to exactly this peer.

        Raises:
            Unreachable: no host answers there, or too many links are open.
            WrongKey: another host answers there.
        """
        self._claim()
        connections: list[Any] = []
        try:
            if isinstance(address, CircuitAddress):
                # One connection for both lanes: both ends run BoundedYamux, whose streams do not wait for each other.
                connections.append(await self._circuits.dial(peer_id, address))
            else:
                connections.append(await self._connect(peer_id, address))
                connections.append(await self._connect(peer_id, address))
            link = self._start(peer_id, *await self._open_lanes(connections[0], connections[-1]))
        except BaseException as error:
            self._links -= 1
            await close_quietly(*(connection.close for connection in connections))
            if isinstance(error, Exception):
                raise _explained(peer_id, address, error) from None
            raise
        return link

    # ------------------------------------------------------------- dialling

    async def _connect(self, peer_id: PeerId, address: P2pAddress) -> Any:
        return await self._host.get_network().dial_addr(Multiaddr(str(address)), ID.from_string(peer_id))

    async def _open_lanes(self, up: Any, down: Any) -> tuple[_Lane, _Lane]:
        token = os.urandom(TOKEN_BYTES)
        opened: dict[LaneName, _Lane] = {}

        async def open_lane(connection: Any, lane: LaneName) -> None:
            stream = await open_stream(connection, PROTOCOL, encode_opening(lane, token))
            opened[lane] = _Lane(stream, trio.Event())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(open_lane, up, "up")
            nursery.start_soon(open_lane, down, "down")
        return opened["up"], opened["down"]

    # ------------------------------------------------------------- accepting

    async def _lane_opened(self, stream: Any) -> None:
        """Accept a lane. libp2p closes the stream when this returns, so this waits for the lane's end."""
        lane = _Lane(stream, trio.Event())
        peer_id = PeerId(str(stream.muxed_conn.peer_id))
        self._lanes[peer_id] += 1
        try:
            if self._lanes[peer_id] > self._lanes_most(peer_id):
                return
            with trio.fail_after(self._limits.opening_timeout_s):
                name, token = parse_opening(await read_exactly(stream, OPENING_BYTES))
            await self._pair(peer_id, name, token, lane)
        except Exception:  # libp2p raises many kinds; a stranger's stream must not end the host, and is closed
            return
        finally:
            self._lanes[peer_id] -= 1
            if not self._lanes[peer_id]:
                del self._lanes[peer_id]
            await close_quietly(stream.reset)

    def _lanes_most(self, peer_id: PeerId) -> int:
        return _MEMBERS_LANES_MOST if self.gate.policy.is_member(peer_id) else _STRANGERS_LANES_MOST

    async def _pair(self, peer_id: PeerId, name: LaneName, token: bytes, lane: _Lane) -> None:
        """Wait for the link's other lane, and then for the link's end."""
        key = (peer_id, token)
        other = self._waiting.pop(key, None)
        if other is None:
            if len(self._waiting) >= self._limits.links_most:
                return
            self._waiting[key] = (name, lane)
            with trio.move_on_after(self._limits.opening_timeout_s):
                await lane.done.wait()
            if key in self._waiting and self._waiting[key][1] is lane:
                del self._waiting[key]
                return
        elif other[0] == name:
            other[1].done.set()
            return
        else:
            up, down = (lane, other[1]) if name == "up" else (other[1], lane)
            try:
                self._claim()
            except Unreachable:
                other[1].done.set()
                raise
            self._user.accepted(self._start(peer_id, down, up))
        await lane.done.wait()

    # ------------------------------------------------------------- both

    def _claim(self) -> None:
        if self._links >= self._limits.links_most:
            raise Unreachable("too many p2p links are open", cause=f"{self._links} of {self._limits.links_most}")
        self._links += 1

    def _start(self, peer_id: PeerId, sends: _Lane, receives: _Lane) -> OpenLink:
        buffers = self._user.buffers()
        self._nursery.start_soon(self._run, buffers, sends, receives)
        address = sends.stream.get_remote_address()
        relayed = sends.stream.muxed_conn.get_connection_type() == ConnectionType.RELAYED
        return OpenLink(peer_id, buffers, address[0] if address else "", _socket_of(sends.stream), relayed)

    async def _run(self, buffers: LinkBuffers, sends: _Lane, receives: _Lane) -> None:
        try:
            lanes = Lanes(sends.stream, receives.stream, buffers, self._limits.silence_timeout_s, self._wake)
            await lanes.run()
        finally:
            self._links -= 1
            sends.done.set()
            receives.done.set()
            await close_quietly(sends.stream.swarm_conn.close, receives.stream.swarm_conn.close)


def _socket_of(stream: Any) -> Any:
    """Return the TCP socket below a stream, which libp2p does not expose; None if there is something else."""
    part = stream.muxed_conn.secured_conn
    for name in ("conn", "read_writer", "read_write_closer", "stream", "stream", "socket"):
        part = getattr(part, name, None)
    return part if hasattr(part, "getsockopt") else None


def _explained(peer_id: PeerId, address: P2pAddress | CircuitAddress, error: Exception) -> RollcastError:
    """Return the error of a failed dial, which libp2p's exceptions hide in their causes."""
    root: BaseException = error
    while (cause := _cause_of(root)) is not None:
        if isinstance(root, RollcastError):
            return root
        root = cause
        if isinstance(root, PeerIDMismatchesPubkey):
            return WrongKey(
                f"{address} is not the address of peer {peer_id}",
                cause="another libp2p host answers there",
                fix="see which process listens there",
            )
    if isinstance(root, RollcastError):
        return root
    return Unreachable(
        f"cannot reach {peer_id} at {address}",
        cause=str(root) or type(root).__name__,
        fix="check the address and the firewall there",
    )


def _cause_of(error: BaseException) -> BaseException | None:
    if isinstance(error, BaseExceptionGroup):
        return error.exceptions[0]
    return error.__cause__ or error.__context__
