"""Relay circuits for other members (circuit relay v2): grant reservations, join streams, keep the owner's caps (trio).

libp2p's own relay keeps only one circuit for each listener, which the next one closes, and does not count the bytes of
all circuits together.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import trio
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, Limit, Reservation, StopMessage
from libp2p.relay.circuit_v2.pb.circuit_pb2 import PeerId as CircuitPeer

from peer.p2p.circuits.allowance import Allowance
from peer.p2p.circuits.book import RESERVATION_S, Answer, CircuitBook
from peer.p2p.circuits.wire import HOP, STOP, encoded, open_stream, read_message, status_of, wire_status, write_message
from peer.p2p.streams.lanes import close_quietly
from peer.p2p.streams.limits import HostLimits
from peer.p2p.streams.windowed import WindowedStream
from rollcast.wire.ids import PeerId

HELD_BYTES = 1 << 20
"""Bytes held of one circuit, each way: enough for 10 MB/s at a round trip of 100 ms to the slower end."""


@dataclass(slots=True)
class Passed:
    """The bytes that one circuit has passed on so far, both ways together."""

    bytes: int = 0


class CircuitRelay:
    """The relay side of circuit relay v2 for one libp2p host; it serves only members of the run.

    Args:
        host: a running libp2p host.
        book: decides which reservations and circuits are granted.
        allowance: the bytes that all circuits together may pass on.
        is_member: returns whether a peer has shown a certificate of the run.
    """

    def __init__(
        self,
        host: Any,
        book: CircuitBook,
        allowance: Allowance,
        is_member: Callable[[PeerId], bool],
        limits: HostLimits,
    ) -> None:
        self._host = host
        self.book = book
        self._allowance = allowance
        self._is_member = is_member
        self._opening_timeout_s = limits.opening_timeout_s
        self._silence_timeout_s = 2 * limits.silence_timeout_s  # the ends give signs of life more often
        self._reserved: dict[PeerId, Any] = {}  # the connection on which each peer is reached
        self._scopes: set[trio.CancelScope] = set()
        host.set_stream_handler(HOP, self._hop)

    def holds(self, connection: Any) -> bool:
        """Return whether the other end of this connection holds a reservation on it."""
        peer_id = PeerId(str(connection.muxed_conn.peer_id))
        return self._reserved.get(peer_id) is connection and self.book.holds(peer_id, trio.current_time())

    def discard_closed(self) -> None:
        """End the reservations whose connections have ended."""
        for peer_id in [peer_id for peer_id, connection in self._reserved.items() if connection.is_closed]:
            del self._reserved[peer_id]
            self.book.left(peer_id)

    def allow(self, *, allowed: bool) -> None:
        """Set whether the owner's limits allow relaying now; if not, open circuits end."""
        self.book.open = allowed
        if not allowed:
            for scope in list(self._scopes):
                scope.cancel()

    # ------------------------------------------------------------- requests

    async def _hop(self, stream: Any) -> None:
        """Answer one request. libp2p closes the stream when this returns, so this waits for the circuit's end."""
        peer_id = PeerId(str(stream.muxed_conn.peer_id))
        try:
            with trio.fail_after(self._opening_timeout_s):
                request = await read_message(stream, HopMessage)
            if not self._is_member(peer_id):
                await self._reply(stream, Answer.PERMISSION_DENIED)
            elif request.type == HopMessage.RESERVE:
                await self._reserve(stream, peer_id)
            elif request.type == HopMessage.CONNECT:
                await self._connect(stream, peer_id, request.peer.id)
            else:
                await self._reply(stream, Answer.UNEXPECTED_MESSAGE)
        except Exception:  # libp2p raises many kinds; a request must not end the host, and is closed
            return
        finally:
            await close_quietly(stream.close)

    async def _reserve(self, stream: Any, peer_id: PeerId) -> None:
        answer = self.book.reserve(peer_id, trio.current_time())
        if answer is not Answer.OK:
            await self._reply(stream, answer)
            return
        self._reserved[peer_id] = stream.swarm_conn
        granted = Reservation(expire=int(time.time() + RESERVATION_S))
        await self._reply(stream, answer, reservation=granted, limit=self._limit())

    async def _connect(self, stream: Any, source: PeerId, target_id: bytes) -> None:
        target = PeerId(str(ID(target_id)))
        self.discard_closed()
        connection = self._reserved.get(target)
        answer = self.book.connect(source, target, trio.current_time())
        if answer is not Answer.OK:
            await self._reply(stream, answer)
            return
        try:
            onward = await self._stop(connection, stream.muxed_conn.peer_id)
            if onward is None:  # the stream is closed, not reset, so the answer arrives
                await self._reply(stream, Answer.CONNECTION_FAILED)
                return
            try:
                await self._reply(stream, Answer.OK, limit=self._limit())
                await self._join(stream, onward)
            finally:
                await close_quietly(stream.reset, onward.reset)
        finally:
            self.book.ended(source)

    async def _stop(self, connection: Any, source_id: ID) -> Any:
        """Return a stream to the target once it has accepted the circuit; None if it does not."""
        onward = None
        try:
            with trio.fail_after(self._opening_timeout_s):
                ask = StopMessage(type=StopMessage.CONNECT, limit=self._limit())
                ask.peer.CopyFrom(CircuitPeer(id=source_id.to_bytes()))
                onward = await open_stream(connection, STOP, encoded(ask))
                if status_of(await read_message(onward, StopMessage)) is Answer.OK:
                    return onward
        except Exception:  # libp2p raises many kinds; the caller answers CONNECTION_FAILED
            pass
        if onward is not None:
            await close_quietly(onward.reset)
        return None

    async def _reply(self, stream: Any, answer: Answer, **more: Any) -> None:
        message = HopMessage(type=HopMessage.STATUS, status=wire_status(answer))
        for name, value in more.items():
            getattr(message, name).CopyFrom(value)
        with trio.fail_after(self._opening_timeout_s):
            await write_message(stream, message)

    def _limit(self) -> Limit:
        caps = self.book.caps
        return Limit(duration=math.ceil(caps.circuit_s), data=caps.circuit_bytes)

    # ------------------------------------------------------------- the circuit

    async def _join(self, one: Any, other: Any) -> None:
        """Pass data both ways until either end closes or stays silent, or the circuit reaches a cap."""
        first, second = (WindowedStream(stream, HELD_BYTES) for stream in (one, other))
        try:
            await self._join_opened(first, second)
        finally:
            await close_quietly(first.reset, second.reset)

    async def _join_opened(self, first: WindowedStream, second: WindowedStream) -> None:
        passed = Passed()
        with trio.move_on_after(self.book.caps.circuit_s) as scope:
            self._scopes.add(scope)
            if not self.book.open:  # the owner's limits changed after the circuit was granted
                scope.cancel()
            try:
                async with trio.open_nursery() as nursery:
                    await first.open()
                    await second.open()
                    nursery.start_soon(self._pass, first, second, passed, nursery.cancel_scope)
                    nursery.start_soon(self._pass, second, first, passed, nursery.cancel_scope)
            finally:
                self._scopes.discard(scope)

    async def _pass(self, source: WindowedStream, sink: WindowedStream, passed: Passed, end: trio.CancelScope) -> None:
        try:
            while passed.bytes < self.book.caps.circuit_bytes:
                with trio.fail_after(self._silence_timeout_s):
                    data = await source.receive()
                if not data:
                    break
                await self._allowance.take(len(data))
                with trio.fail_after(self._silence_timeout_s):
                    await sink.send(data)
                passed.bytes += len(data)
                await source.grant(len(data))
        except Exception:  # libp2p raises many kinds; the circuit ends whatever it was
            pass
        end.cancel()
