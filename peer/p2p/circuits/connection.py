"""A stream through a relay as libp2p's raw connection, on which noise and yamux run as on a socket (trio)."""

from __future__ import annotations

from typing import Any

import trio
from libp2p.abc import IRawConnection
from libp2p.connection_types import ConnectionType
from libp2p.network.connection.exceptions import RawConnError
from multiaddr import Multiaddr

from peer.p2p.streams.lanes import close_quietly
from peer.p2p.streams.windowed import WindowedStream

WINDOW_BYTES = 2 << 20
"""Ahead on the way from the relay: what the link itself may send ahead, the relay would hold else."""


class CircuitConn(IRawConnection):  # type: ignore[misc]
    """One end of a circuit.

    Args:
        stream: to the relay, on which nothing more is said but between the ends.
        initiator: whether we asked for the circuit.
        address: of the circuit, for libp2p to see that it is one.
    """

    def __init__(self, stream: Any, *, initiator: bool, address: str) -> None:
        self.is_initiator = initiator
        self.closed = trio.Event()
        self._stream = stream
        self._windowed = WindowedStream(stream, WINDOW_BYTES)
        self._came = bytearray()
        self._reading = trio.CancelScope()
        self._address = Multiaddr(address)

    async def open(self) -> CircuitConn:
        """Before anything else."""
        await self._windowed.open()
        return self

    async def read(self, n: int | None = None) -> bytes:
        """At most ``n`` bytes; empty at the end."""
        if not self._came:
            # libp2p forgets whoever waits for data of a stream that is reset.
            with self._reading:
                await self._receive()
            if self._reading.cancelled_caught:
                raise RawConnError("the circuit was closed here")
            self._reading = trio.CancelScope()
        most = len(self._came) if n is None or n < 0 else n
        taken = bytes(self._came[:most])
        del self._came[:most]
        return taken

    async def _receive(self) -> None:
        try:
            data = await self._windowed.receive()
            await self._windowed.grant(len(data))
        except Exception as error:  # libp2p raises many kinds; whoever reads knows this one
            raise RawConnError(f"the circuit broke: {error or type(error).__name__}") from error
        self._came += data

    async def write(self, data: bytes) -> None:
        """Send all of it."""
        try:
            await self._windowed.send(data)
        except Exception as error:  # see read
            raise RawConnError(f"the circuit broke: {error or type(error).__name__}") from error

    async def close(self) -> None:
        """End the circuit."""
        if not self.closed.is_set():
            self.closed.set()
            self._reading.cancel()
            await close_quietly(self._windowed.reset)

    def get_remote_address(self) -> tuple[str, int] | None:
        """Of the relay: that is where the bytes go."""
        address: tuple[str, int] | None = self._stream.get_remote_address()
        return address

    def get_transport_addresses(self) -> list[Multiaddr]:
        """The circuit's."""
        return [self._address]

    def get_connection_type(self) -> ConnectionType:
        """Through a relay."""
        return ConnectionType.RELAYED
