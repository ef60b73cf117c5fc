"""A faster noise connection for libp2p: larger reads, fewer copies, and a direct path for bulk data (trio).

libp2p reads a message in three system calls, copies it six times, and yields to its scheduler at each lock on the way.
Here one read takes everything that has arrived, and the data of a bulk stream goes directly to its sink; libp2p's own
loop sees only the other frames.
"""

from __future__ import annotations

import struct
from typing import Any, Protocol

import trio
from libp2p.io.exceptions import ConnectionClosedError, IncompleteReadError
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.exceptions import RawConnError
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.stream_muxer.yamux.yamux import HEADER_SIZE, TYPE_DATA, YAMUX_HEADER_FORMAT

_READ_BYTES = 256 << 10
# Seconds from a frame's header to its end.
_BODY_TIMEOUT_S = 60.0
_HEADER = struct.Struct(YAMUX_HEADER_FORMAT)
_LENGTH = struct.Struct(">H")


class Sink(Protocol):
    """A receiver of all data of one stream."""

    def clear(self) -> bool:
        """Return whether all data that went through yamux was taken; later data must not overtake it."""

    def take(self, data: memoryview) -> None:
        """Take the next data."""

    def rest(self) -> None:
        """Note that all data that has arrived was taken; called after ``take``, before waiting for more."""


class NoiseConnection:
    """The connection that yamux reads and writes in place of libp2p's session. One reader and one writer at a time.

    Args:
        session: libp2p's session, after its handshake and the choice of its muxer.
    """

    def __init__(self, session: Any) -> None:
        self.session = session
        self.conn = session.conn
        self.is_initiator = session.is_initiator
        self._raw = self.conn.read_writer.read_write_closer
        self._socket = _socket_stream_of(self._raw)
        self._sinks: dict[int, Sink] = {}
        self._took: Sink | None = None  # the sink that took data since its last rest
        self._came = b""  # encrypted bytes that have arrived; those before _came_at are consumed
        self._came_at = 0
        self._plain = memoryview(session._drain(None))  # rest of the decrypted message; libp2p may have read some of it

    def divert(self, stream_id: int, sink: Sink) -> None:
        """Pass data of this stream to ``sink`` instead of yamux from now on, while it is ``clear``."""
        self._sinks[stream_id] = sink

    def forget(self, stream_id: int) -> None:
        """Pass data of this stream to yamux again."""
        self._sinks.pop(stream_id, None)

    async def read(self, n: int | None = None) -> bytes:
        """Return the header of the next frame for yamux, which asks for nothing else; ``n`` is ignored.

        Raises:
            IncompleteReadError: the connection was closed.
            RawConnError: the connection broke.
        """
        while True:
            header = await self.exactly(HEADER_SIZE)
            version, kind, flags, stream_id, size_bytes = _HEADER.unpack(header)
            sink = self._sinks.get(stream_id)
            if sink is None or version or kind != TYPE_DATA or flags or not sink.clear():
                return header
            await self._pass(size_bytes, sink)

    async def exactly(self, size_bytes: int) -> bytes:
        """Return exactly the next ``size_bytes`` bytes.

        Raises:
            IncompleteReadError: the connection was closed.
            RawConnError: the connection broke.
        """
        piece = await self._some(size_bytes)
        if len(piece) == size_bytes:
            return bytes(piece)
        whole = bytearray(piece)
        while len(whole) < size_bytes:
            whole += await self._some(size_bytes - len(whole))
        return bytes(whole)

    async def write(self, data: bytes) -> None:
        """Send one message; libp2p's yamux produces none that is too long.

        A message that was encrypted but not sent, or sent in part, ends the connection, because the other end could
        decrypt none that follows. So cancellation is checked before the encryption.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        message = self.conn.encrypt(data)
        sent = _LENGTH.pack(len(message)) + message
        if self._socket is None:
            await self._raw.write(sent)
            return
        try:
            await self._socket.send_all(sent)
        except trio.Cancelled:  # the message was perhaps sent in part
            self._socket.socket.close()
            raise
        except trio.BrokenResourceError as error:
            raise ConnectionClosedError(f"the connection broke: {error}", transport="tcp") from error
        except trio.ClosedResourceError:
            return  # closed by this end; libp2p's own connection ignores that too

    async def close(self) -> None:
        """Close the connection."""
        await self.session.close()

    def get_remote_address(self) -> tuple[str, int] | None:
        """See libp2p's session."""
        address: tuple[str, int] | None = self.session.get_remote_address()
        return address

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    # ------------------------------------------------------------- inside

    async def _pass(self, size_bytes: int, sink: Sink) -> None:
        if not size_bytes:
            return
        if self._took is not sink:
            self._rest()
        if len(self._plain) >= size_bytes:  # the usual case; the deadline below would cost as much time as all of it
            piece, self._plain = self._plain[:size_bytes], self._plain[size_bytes:]
            self._took = sink
            sink.take(piece)
            return
        with trio.fail_after(_BODY_TIMEOUT_S):
            while size_bytes:
                piece = await self._some(size_bytes)
                size_bytes -= len(piece)
                self._took = sink
                sink.take(piece)

    async def _some(self, size_bytes: int) -> memoryview:
        """Return the next bytes: at least one, at most ``size_bytes``."""
        if not self._plain:
            self._plain = await self._message()
        taken, self._plain = self._plain[:size_bytes], self._plain[size_bytes:]
        return taken

    async def _message(self) -> memoryview:
        """Return the next message that is not empty, decrypted."""
        while True:
            size_bytes = _LENGTH.unpack(await self._came_exactly(_LENGTH.size))[0]
            plain = self.conn.decrypt(await self._came_exactly(size_bytes))
            if plain:
                return memoryview(plain)

    async def _came_exactly(self, size_bytes: int) -> bytes:
        """Return exactly the next ``size_bytes`` encrypted bytes."""
        while (end := self._came_at + size_bytes) > len(self._came):
            data = await self._receive()
            self._came, self._came_at = (self._came[self._came_at :] + data, 0) if self._came else (data, 0)
        taken = self._came[self._came_at : end]
        self._came_at = end
        if end == len(self._came):
            self._came, self._came_at = b"", 0
        return taken

    def _rest(self) -> None:
        took, self._took = self._took, None
        if took is not None:
            took.rest()

    async def _receive(self) -> bytes:
        self._rest()
        try:
            if self._socket is not None:
                data: bytes = await self._socket.receive_some(_READ_BYTES)
            else:
                data = await self._raw.read(_READ_BYTES)
        except trio.BrokenResourceError as error:
            raise RawConnError(f"the connection broke: {error}") from error
        except trio.ClosedResourceError:
            data = b""
        if not data:
            raise IncompleteReadError("the connection was closed", 1, len(self._came) - self._came_at)
        return data


def _socket_stream_of(raw: Any) -> trio.SocketStream | None:
    """Return the TCP socket below libp2p's layers, which lock and copy; None: the connection is no TCP socket."""
    if isinstance(raw, RawConnection) and isinstance(raw.stream, TrioTCPStream):
        stream: trio.SocketStream = raw.stream.stream
        return stream
    return None
