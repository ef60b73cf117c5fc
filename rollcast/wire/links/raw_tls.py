"""TLS of an established asyncio connection, taken into our own hands.

asyncio's own TLS protocol wakes the process for every packet, copies everything twice and holds 256 KiB per connection.
Here the bytes of the socket come as they are, and OpenSSL is asked only when a record is complete.

TLS 1.3 records are counted as their bytes arrive (RFC 8446 section 5), without decrypting them: their lengths are not
encrypted. Whoever waits for a number of plaintext bytes can tell from them how many
bytes the socket must deliver at the least: waking for fewer is of no use.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import Any, cast
from weakref import WeakKeyDictionary

from rollcast.wire.versions.chunks import BytesLike

_HEADER_BYTES = 5  # type, version, length
_OVERHEAD_BYTES = 17  # content type and tag, which count in the record's length
_PLAINTEXT_BYTES_MAX = 16 << 10


class TlsRecords:
    """Position in one direction of a connection; begins at the border of a record."""

    def __init__(self) -> None:
        self._header = bytearray()  # of the next record, where it came in part
        self._length = 0  # of the current record, without its header
        self._left = 0  # of it, still to come

    def feed(self, data: memoryview) -> None:
        """Note the next bytes that came."""
        at, size = 0, len(data)
        while at < size:
            if self._left:
                step = min(self._left, size - at)
                self._left -= step
                at += step
            elif not self._header and size - at >= _HEADER_BYTES:
                self._length = self._left = data[at + 3] << 8 | data[at + 4]
                at += _HEADER_BYTES
            else:
                taken = data[at : at + _HEADER_BYTES - len(self._header)]
                self._header += taken
                at += len(taken)
                if len(self._header) == _HEADER_BYTES:
                    self._length = self._left = self._header[3] << 8 | self._header[4]
                    self._header.clear()

    def bytes_to_come(self, plaintext_bytes: int) -> int:
        """Bytes that must still come, at the least, before so many bytes of plaintext not yet decrypted are complete.

        At least 1: within a record, nothing can be decrypted before the record is complete.
        """
        if self._left:
            beyond = plaintext_bytes - max(0, self._length - _OVERHEAD_BYTES)
            return self._left + _encrypted(max(0, beyond))
        return max(1, _encrypted(plaintext_bytes) - len(self._header))


def _encrypted(plaintext_bytes: int) -> int:
    records = -(-plaintext_bytes // _PLAINTEXT_BYTES_MAX)
    return plaintext_bytes + records * (_HEADER_BYTES + _OVERHEAD_BYTES)


READ_BYTES = 256 << 10
"""Taken from a socket at once, and the most that is left to collect in it."""

_buffers: WeakKeyDictionary[asyncio.AbstractEventLoop, memoryview] = WeakKeyDictionary()


class TakenTls:
    """The encryption of one connection whose handshake is done.

    asyncio keeps the parts to itself; they have had the same names from Python 3.11 to 3.14.

    Args:
        transport: as asyncio gave it to the protocol above TLS; of no use to that one any more.
    """

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        self._handshaker: Any = cast(Any, transport)._ssl_protocol
        self._object: ssl.SSLObject = transport.get_extra_info("ssl_object")
        self._incoming: ssl.MemoryBIO = self._handshaker._incoming
        self._outgoing: ssl.MemoryBIO = self._handshaker._outgoing
        self._records = TlsRecords()
        self.buffer = _buffer_of(asyncio.get_running_loop())
        """Where the socket's bytes go before ``receive``."""
        self.socket: asyncio.Transport | None = self._handshaker._transport
        """The connection below; None where it is gone already."""

    @property
    def readable(self) -> bool:
        """Whether bytes came that were not read yet; part of a record may not be readable after all."""
        return bool(self._incoming.pending or self._object.pending())

    def take_over(self, protocol: asyncio.BufferedProtocol) -> None:
        """Hand what the socket receives to ``protocol`` from now on, encrypted."""
        assert self.socket is not None
        _shrink(self._handshaker)
        self.socket.set_protocol(protocol)

    def receive(self, size_bytes: int) -> None:
        """So many bytes came from the socket into ``buffer``."""
        data = self.buffer[:size_bytes]
        self._records.feed(data)
        self._incoming.write(data)

    def read(self, buffer: memoryview) -> int:
        """Decrypt into ``buffer``; 0 at the end.

        Raises:
            ssl.SSLWantReadError: no record is complete.
            ssl.SSLError: the other end does not speak TLS.
        """
        return cast(int, self._object.read(len(buffer), buffer))

    def bytes_to_come(self, plaintext_bytes: int) -> int:
        """See TlsRecords; counts from the first plaintext byte not read yet."""
        return self._records.bytes_to_come(plaintext_bytes)

    def write(self, data: BytesLike) -> None:
        """Encrypt ``data``, beginning with a new record.

        Raises:
            ssl.SSLError: the connection failed before.
        """
        view = memoryview(data)
        while len(view):
            view = view[self._object.write(view) :]

    def say_goodbye(self) -> None:
        """Write our close_notify; the other end's is not waited for."""
        with contextlib.suppress(ssl.SSLError, ValueError):
            self._object.unwrap()

    def output(self) -> bytes:
        """What is to be sent, encrypted."""
        return self._outgoing.read() if self._outgoing.pending else b""

    def lost(self, error: Exception | None) -> None:
        """The socket is gone: let whoever had the connection before clean up as well."""
        self._handshaker.connection_lost(error)


def shrink(transport: asyncio.BaseTransport) -> None:
    """Give back the 256 KiB that asyncio keeps to read one TLS connection; the next bytes that come take them again.

    For connections that stay open and whose other end has said what it had to; without TLS there is nothing to do.
    """
    handshaker = getattr(transport, "_ssl_protocol", None)
    if handshaker is not None:
        _shrink(handshaker)


def _shrink(handshaker: Any) -> None:
    handshaker._ssl_buffer = bytearray()
    handshaker._ssl_buffer_view = memoryview(b"")


def _buffer_of(loop: asyncio.AbstractEventLoop) -> memoryview:
    """What all connections of an event loop receive into: OpenSSL copies it before the loop goes on."""
    buffer = _buffers.get(loop)
    if buffer is None:
        buffer = _buffers[loop] = memoryview(bytearray(READ_BYTES))
    return buffer
