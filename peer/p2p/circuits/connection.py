"""Present a stream through a relay as libp2p's raw connection, so that noise and yamux run on it (trio)."""

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
"""Bytes that the relay may send ahead; of what the link itself sends ahead, the rest has to wait in the relay."""


class CircuitConn(IRawConnection):  # type: ignore[misc]
    """One end of a circuit.

    Args:
        stream: the stream to the relay, which carries only the bytes of the two ends from now on.
        initiator: whether this peer requested the circuit.
        address: the circuit's address, from which libp2p sees that it is one.
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
        """Open the stream's receive window and return this connection; call this before any other method."""
        await self._windowed.open()
        return self

    async def read(self, n: int | None = None) -> bytes:
        """Return at most ``n`` bytes, or all that have arrived if ``n`` is None or negative; empty at the end.

        Raises:
            RawConnError: the circuit broke, or was closed here.
        """
        if not self._came:
            # libp2p never wakes a task that waits for data of a stream that is reset, so ``close`` cancels it.
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
        except Exception as error:  # libp2p raises many kinds; users of a raw connection handle this one
            raise RawConnError(f"the circuit broke: {error or type(error).__name__}") from error
        self._came += data

    async def write(self, data: bytes) -> None:
        """Send all of ``data``.

        Raises:
            RawConnError: the circuit broke.
        """
        try:
            await self._windowed.send(data)
        except Exception as error:  # see _receive
            raise RawConnError(f"the circuit broke: {error or type(error).__name__}") from error

    async def close(self) -> None:
        """End the circuit."""
        if not self.closed.is_set():
            self.closed.set()
            self._reading.cancel()
            await close_quietly(self._windowed.reset)

    def get_remote_address(self) -> tuple[str, int] | None:
        """Return the relay's address, because the bytes go there; None if it is not known."""
        address: tuple[str, int] | None = self._stream.get_remote_address()
        return address

    def get_transport_addresses(self) -> list[Multiaddr]:
        """Return the circuit's address."""
        return [self._address]

    def get_connection_type(self) -> ConnectionType:
        """Return that this connection passes through a relay."""
        return ConnectionType.RELAYED
