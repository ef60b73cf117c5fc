"""The libp2p host of a peer at work: takes and opens links, and closes connections of strangers (trio)."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import trio
from libp2p.peer.id import ID
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator
from libp2p.security.noise.exceptions import PeerIDMismatchesPubkey
from multiaddr import Multiaddr

from peer.p2p.addresses import P2pAddress
from peer.p2p.buffers import LinkBuffers
from peer.p2p.lanes import Lanes, close_quietly
from peer.p2p.limits import HostLimits
from peer.p2p.opening import OPENING_BYTES, PROTOCOL, TOKEN_BYTES, LaneName, encode_opening, parse_opening
from rollcast.runtime.errors import RollcastError, Unreachable, WrongKey
from rollcast.wire.ids import PeerId


@dataclass(frozen=True, slots=True)
class OpenLink:
    """A link whose two lanes are open; nothing was read yet.

    Args:
        remote_address: IP address of the other end; empty: not known.
        socket: of the connection that carries our frames, where it is a TCP socket of ours.
    """

    peer_id: PeerId
    buffers: LinkBuffers
    remote_address: str
    socket: Any


class HostUser(Protocol):
    """What the event loop's side does about a host. All calls come in the host's thread."""

    def buffers(self) -> LinkBuffers:
        """Buffers of a new link."""

    def accepted(self, link: OpenLink) -> None:
        """Somebody opened a link."""


@dataclass(slots=True)
class _Lane:
    stream: Any
    done: trio.Event


class Host:
    """Give it a libp2p host that runs; then call ``serve`` and ``dial``.

    Args:
        wake: makes a function that calls the one given in this thread, from any thread.
    """

    def __init__(
        self,
        host: Any,
        limits: HostLimits,
        user: HostUser,
        nursery: trio.Nursery,
        wake: Callable[[Callable[[], None]], Callable[[], None]],
    ) -> None:
        self._host = host
        self._limits = limits
        self._user = user
        self._nursery = nursery
        self._wake = wake
        self._waiting: dict[tuple[PeerId, bytes], tuple[LaneName, _Lane]] = {}
        self._links = 0

    async def serve(self) -> None:
        """Take links, and close what strangers leave open, for ever."""
        self._host.set_stream_handler(PROTOCOL, self._lane_opened)
        first_seen_s: dict[int, float] = {}
        while True:
            await trio.sleep(self._limits.strangers_timeout_s / 4)
            first_seen_s = await self._close_strangers(first_seen_s)

    async def dial(self, peer_id: PeerId, address: P2pAddress) -> OpenLink:
        """A link to exactly this peer.

        Raises:
            Unreachable: nobody answers there, or too many links are open.
            WrongKey: somebody else answers there.
        """
        self._claim()
        connections: list[Any] = []
        try:
            token = os.urandom(TOKEN_BYTES)
            up = await self._open_lane(peer_id, address, "up", token, connections)
            down = await self._open_lane(peer_id, address, "down", token, connections)
            link = self._start(peer_id, up, down)
        except BaseException as error:
            self._links -= 1
            await close_quietly(*(connection.close for connection in connections))
            if isinstance(error, Exception):
                raise _explained(peer_id, address, error) from None
            raise
        return link

    # ------------------------------------------------------------- dialling

    async def _open_lane(
        self, peer_id: PeerId, address: P2pAddress, lane: LaneName, token: bytes, connections: list[Any]
    ) -> _Lane:
        """One connection of its own, and the lane on it."""
        network = self._host.get_network()
        connection = await network.dial_addr(Multiaddr(str(address)), ID.from_string(peer_id))
        connections.append(connection)
        network.protect(connection.muxed_conn.peer_id, PROTOCOL)  # else it may be closed as one too many
        stream = await connection.new_stream()
        await self._host.multiselect_client.select_one_of([PROTOCOL], MultiselectCommunicator(stream))
        stream.set_protocol(PROTOCOL)
        await stream.write(encode_opening(lane, token))
        return _Lane(stream, trio.Event())

    # ------------------------------------------------------------- accepting

    async def _lane_opened(self, stream: Any) -> None:
        """libp2p closes the stream when this returns: it stays for as long as the lane."""
        lane = _Lane(stream, trio.Event())
        try:
            with trio.fail_after(self._limits.opening_timeout_s):
                name, token = parse_opening(await _read_exactly(stream, OPENING_BYTES))
            await self._pair(name, token, lane)
        except Exception:  # libp2p raises many kinds; a stranger's stream must not end the host, and is closed
            return
        finally:
            await close_quietly(stream.reset)

    async def _pair(self, name: LaneName, token: bytes, lane: _Lane) -> None:
        """Wait for the link's other lane, and then for the link's end."""
        peer_id = PeerId(str(lane.stream.muxed_conn.peer_id))
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
            self._host.get_network().protect(lane.stream.muxed_conn.peer_id, PROTOCOL)
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
        return OpenLink(peer_id, buffers, address[0] if address else "", _socket_of(sends.stream))

    async def _run(self, buffers: LinkBuffers, sends: _Lane, receives: _Lane) -> None:
        try:
            lanes = Lanes(sends.stream, receives.stream, buffers, self._limits.silence_timeout_s, self._wake)
            await lanes.run()
        finally:
            self._links -= 1
            sends.done.set()
            receives.done.set()
            await close_quietly(sends.stream.swarm_conn.close, receives.stream.swarm_conn.close)

    async def _close_strangers(self, first_seen_s: dict[int, float]) -> dict[int, float]:
        """Close connections without a link, which may be anybody's.

        Args:
            first_seen_s: by connection, when it was seen without one first.
        """
        now = trio.current_time()
        still: dict[int, float] = {}
        for connection in list(self._host.get_network().get_connections()):
            if any(stream.get_protocol() == PROTOCOL for stream in connection.get_streams()):
                continue
            since_s = first_seen_s.get(id(connection), now)
            if now - since_s >= self._limits.strangers_timeout_s:
                await close_quietly(connection.close)
            else:
                still[id(connection)] = since_s
        return still


async def _read_exactly(stream: Any, size_bytes: int) -> bytes:
    data = b""
    while len(data) < size_bytes:
        more = await stream.read(size_bytes - len(data))
        if not more:
            break
        data += more
    return data


def _socket_of(stream: Any) -> Any:
    """The TCP socket below a stream, or None where something else is: libp2p does not hand it out."""
    part = stream.muxed_conn.secured_conn
    for name in ("conn", "read_writer", "read_write_closer", "stream", "stream", "socket"):
        part = getattr(part, name, None)
    return part if hasattr(part, "getsockopt") else None


def _explained(peer_id: PeerId, address: P2pAddress, error: Exception) -> RollcastError:
    """libp2p's exceptions hide what was wrong in their causes."""
    root: BaseException = error
    while (cause := root.__cause__ or root.__context__) is not None:
        if isinstance(root, RollcastError):
            return root
        root = cause
        if isinstance(root, PeerIDMismatchesPubkey):
            return WrongKey(
                f"{address.host}:{address.port} is not the address of peer {peer_id}",
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
