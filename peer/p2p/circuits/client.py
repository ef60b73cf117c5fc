"""Reach other peers through relays, and be reached: open, accept and reserve circuits (trio)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, StopMessage
from libp2p.relay.circuit_v2.pb.circuit_pb2 import PeerId as CircuitPeer
from multiaddr import Multiaddr

from peer.links.addresses import CircuitAddress, P2pAddress
from peer.p2p.circuits.book import Answer
from peer.p2p.circuits.connection import CircuitConn
from peer.p2p.circuits.wire import (
    HOP,
    STOP,
    encoded,
    open_stream,
    read_message,
    show_certificate,
    status_of,
    wire_status,
    write_message,
)
from peer.p2p.streams.lanes import close_quietly
from rollcast.runtime.errors import Unreachable
from rollcast.wire.ids import PeerId

# Seconds between renewals of a reservation: often enough that no router on the way drops the connection, and that a
# frozen relay is noticed.
_RENEW_S = 30.0


class CircuitClient:
    """The client side of circuit relay v2 for one libp2p host.

    Args:
        host: a running libp2p host.
        certificate: returns this peer's newest certificate of the run, in DER form.
        own_id: PeerId of this peer.
        opening_timeout_s: seconds for one request to a relay, and for accepting one circuit.
    """

    def __init__(self, host: Any, certificate: Callable[[], bytes], own_id: PeerId, opening_timeout_s: float) -> None:
        self._host = host
        self._certificate = certificate
        self._own_id = own_id
        self._opening_timeout_s = opening_timeout_s
        self._shown: dict[int, Any] = {}  # connections on which our certificate was accepted
        self._meeting: dict[str, trio.Lock] = {}
        self._relays: dict[str, Any] = {}  # connections on which we hold a reservation, by the relay's id
        host.set_stream_handler(STOP, self._stop)

    def holds(self, connection: Any) -> bool:
        """Return whether this peer holds a reservation on this connection."""
        return any(held is connection for held in self._relays.values())

    def discard_closed(self) -> None:
        """Discard the records of connections that have ended."""
        self._shown = {key: held for key, held in self._shown.items() if not held.is_closed}
        self._meeting = {key: lock for key, lock in self._meeting.items() if lock.locked()}

    # ------------------------------------------------------------- to others

    async def dial(self, peer_id: PeerId, address: CircuitAddress) -> Any:
        """Return a connection to exactly this peer through the relay, with the handshake done.

        Raises:
            Unreachable: the relay refuses. libp2p raises many other exceptions.
        """
        connection = await self.connection_to(address.relay)
        ask = HopMessage(type=HopMessage.CONNECT)
        ask.peer.CopyFrom(CircuitPeer(id=ID.from_string(peer_id).to_bytes()))
        stream = await open_stream(connection, HOP, encoded(ask))
        try:
            _agreed(await read_message(stream, HopMessage), address)
            circuit = await CircuitConn(stream, initiator=True, address=str(address)).open()
        except BaseException:
            await close_quietly(stream.reset)
            raise
        try:
            made = await self._host.get_network().upgrade_outbound_raw_conn(circuit, ID.from_string(peer_id))
        except BaseException:
            await close_quietly(circuit.close)
            raise
        return made

    async def connection_to(self, relay: P2pAddress) -> Any:
        """Return an open or a new connection on which the relay has accepted our certificate of the run.

        Raises:
            Unreachable: the relay does not accept it. libp2p raises many other exceptions.
        """
        lock = self._meeting.setdefault(relay.peer_id, trio.Lock())
        async with lock:
            network = self._host.get_network()
            relay_id = ID.from_string(relay.peer_id)
            for known in self._shown.values():
                if str(known.muxed_conn.peer_id) == relay.peer_id and not known.is_closed:
                    return known
            connection = await network.dial_addr(Multiaddr(str(relay)), relay_id)
            try:
                if not await show_certificate(connection, self._certificate()):
                    raise Unreachable(f"the relay {relay} does not accept our certificate of the run")
            except BaseException:
                await close_quietly(connection.close)
                raise
            self._shown[id(connection)] = connection
            return connection

    # ------------------------------------------------------------- to us

    async def reserve(self, relay: P2pAddress, held: Callable[[], None]) -> None:
        """Hold a reservation for as long as the relay renews it; ``held`` is called once it is granted.

        Raises:
            Unreachable: the relay refuses, at once or later. libp2p raises many other exceptions.
        """
        with trio.fail_after(2 * self._opening_timeout_s):
            connection = await self.connection_to(relay)
        try:
            while True:
                with trio.fail_after(self._opening_timeout_s):
                    await self._renew(connection, relay)
                if self._relays.get(relay.peer_id) is not connection:
                    self._relays[relay.peer_id] = connection
                    held()
                with trio.move_on_after(_RENEW_S):
                    await connection.event_closed.wait()
                    raise Unreachable(f"the connection to the relay {relay} ended")
        finally:
            self._relays.pop(relay.peer_id, None)
            if not any(stream.get_protocol() in (HOP, STOP) for stream in connection.get_streams()):
                await close_quietly(connection.close)

    async def _renew(self, connection: Any, relay: P2pAddress) -> None:
        stream = await open_stream(connection, HOP, encoded(HopMessage(type=HopMessage.RESERVE)))
        try:
            _agreed(await read_message(stream, HopMessage), relay)
        finally:
            await close_quietly(stream.close)

    async def _stop(self, stream: Any) -> None:
        """Accept a circuit to this peer. libp2p closes the stream when this returns, so this waits for its end."""
        relay_id = str(stream.muxed_conn.peer_id)
        try:
            with trio.fail_after(self._opening_timeout_s):
                ask = await read_message(stream, StopMessage)
                known = ask.type == StopMessage.CONNECT and self._relays.get(relay_id) is stream.swarm_conn
                answer = Answer.OK if known else Answer.PERMISSION_DENIED
                await write_message(stream, StopMessage(type=StopMessage.STATUS, status=wire_status(answer)))
                if not known:
                    return
                address = f"/p2p/{relay_id}/p2p-circuit/p2p/{self._own_id}"
                circuit = await CircuitConn(stream, initiator=False, address=address).open()
            # The other end proves its PeerId in the handshake; what the relay reports about it is not trusted.
            await self._host.get_network().upgrade_inbound_raw_conn(circuit, Multiaddr(address))
            await circuit.closed.wait()
        except Exception:  # libp2p raises many kinds; a stranger's circuit must not end the host, and is closed
            return
        finally:
            await close_quietly(stream.reset)


def _agreed(answer: HopMessage, relay: P2pAddress | CircuitAddress) -> None:
    status = status_of(answer)
    if answer.type != HopMessage.STATUS or status is not Answer.OK:
        raise Unreachable(f"the relay of {relay} refuses", cause=status.name.lower().replace("_", " "))
