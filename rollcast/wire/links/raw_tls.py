"""Take over the TLS of an established asyncio connection.

asyncio's own TLS protocol wakes the process for every packet, copies everything twice and holds 256 KiB per connection.
Here the encrypted bytes of the socket arrive directly, and OpenSSL is called only when a record is complete.

TLS 1.3 records are counted as their bytes arrive (RFC 8446 section 5) without decrypting them: their lengths are not
encrypted. From the lengths follows how many bytes the socket must deliver, at the least, before a number of plaintext
bytes is complete; waking the process for fewer has no use.
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
    """The position within the TLS records of one direction; it must begin at the start of a record."""

    def __init__(self) -> None:
        self._header = bytearray()  # the part of the next record's header that has arrived
        self._length = 0  # length of the current record, without its header
        self._left = 0  # bytes of the current record that have not arrived

    def feed(self, data: memoryview) -> None:
        """Advance the position by bytes that arrived."""
        at, size, header = self._left, len(data), self._header  # ``at`` is where the current record ends
        while at < size:
            if header or size - at < _HEADER_BYTES:
                taken = data[at : at + _HEADER_BYTES - len(header)]
                header += taken
                at += len(taken)
                if len(header) < _HEADER_BYTES:
                    break
                length = header[3] << 8 | header[4]
                header.clear()
            else:
                length = data[at + 3] << 8 | data[at + 4]
                at += _HEADER_BYTES
            self._length = length
            at += length
        self._left = at - size

    def bytes_to_come(self, plaintext_bytes: int) -> int:
        """Return the fewest bytes that must still arrive before ``plaintext_bytes`` not yet decrypted are complete.

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
"""The most bytes taken from a socket at once, and the most that are left to collect in it."""

_buffers: WeakKeyDictionary[asyncio.AbstractEventLoop, memoryview] = WeakKeyDictionary()


class TakenTls:
    """The TLS encryption of one connection after its handshake.

    It uses private attributes of asyncio, which have had the same names from Python 3.11 to 3.14.

    Args:
        transport: the transport that asyncio gave to the protocol above TLS; that protocol must not use it any more.
    """

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        self._handshaker: Any = cast(Any, transport)._ssl_protocol
        self._object: ssl.SSLObject = transport.get_extra_info("ssl_object")
        self._read = cast(Any, self._object)._sslobj.read  # called for each record: without the Python around it
        self._incoming: ssl.MemoryBIO = self._handshaker._incoming
        self._outgoing: ssl.MemoryBIO = self._handshaker._outgoing
        self._records = TlsRecords()
        self.buffer = _buffer_of(asyncio.get_running_loop())
        """The memory that the socket's bytes are received into, before ``receive`` is called."""
        self.socket: asyncio.Transport | None = self._handshaker._transport
        """The TCP connection below TLS; None if it has closed already."""

    @property
    def readable(self) -> bool:
        """Whether unread bytes have arrived; an incomplete record among them cannot be read yet."""
        return bool(self._incoming.pending or self._object.pending())

    def take_over(self, protocol: asyncio.BufferedProtocol) -> None:
        """Deliver the socket's encrypted bytes to ``protocol`` from now on."""
        assert self.socket is not None
        _shrink(self._handshaker)
        self.socket.set_protocol(protocol)

    def receive(self, size_bytes: int) -> None:
        """Take ``size_bytes`` that the socket has put into ``buffer``."""
        data = self.buffer[:size_bytes]
        self._records.feed(data)
        self._incoming.write(data)

    def fill(self, buffer: memoryview) -> int:
        """Decrypt into ``buffer`` until it is full or no record is complete. Returns the number of bytes.

        OpenSSL gives out one record of at most 16 KiB at a time.

        Raises:
            ssl.SSLZeroReturnError: the other end has closed the connection, and nothing was decrypted.
            ssl.SSLWantReadError: no record is complete, and nothing was decrypted.
            ssl.SSLError: the received bytes are not valid TLS.
        """
        read, size = self._read, len(buffer)
        filled = 0
        try:
            while filled < size:
                count: int = read(size - filled, buffer[filled:] if filled else buffer)
                if not count:
                    raise ssl.SSLZeroReturnError
                filled += count
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            if not filled:
                raise
        return filled

    def bytes_to_come(self, plaintext_bytes: int) -> int:
        """Return the figure of TlsRecords, counted from the first plaintext byte that is not read yet."""
        return self._records.bytes_to_come(plaintext_bytes)

    def write(self, data: BytesLike) -> None:
        """Encrypt ``data``, beginning with a new record.

        Raises:
            ssl.SSLError: the connection failed before.
        """
        view = memoryview(data)
        while len(view):
            view = view[self._object.write(view) :]

    def send_close_notify(self) -> None:
        """Write our close_notify without waiting for the other end's."""
        with contextlib.suppress(ssl.SSLError, ValueError):
            self._object.unwrap()

    @property
    def has_output(self) -> bool:
        """Whether ``output`` returns any bytes."""
        return bool(self._outgoing.pending)

    def output(self) -> bytes:
        """Return the encrypted bytes to send; empty if there are none."""
        return self._outgoing.read() if self._outgoing.pending else b""

    def lost(self, error: Exception | None) -> None:
        """Let asyncio's own TLS protocol clean up after the socket has closed."""
        self._handshaker.connection_lost(error)


def shrink(transport: asyncio.BaseTransport) -> None:
    """Free the 256 KiB that asyncio holds to read one TLS connection; the next bytes that arrive allocate them again.

    It is meant for connections that stay open while the other end sends nothing; without TLS it does nothing.
    """
    handshaker = getattr(transport, "_ssl_protocol", None)
    if handshaker is not None:
        _shrink(handshaker)


def _shrink(handshaker: Any) -> None:
    handshaker._ssl_buffer = bytearray()
    handshaker._ssl_buffer_view = memoryview(b"")


def _buffer_of(loop: asyncio.AbstractEventLoop) -> memoryview:
    """Return the buffer that all connections of an event loop share: OpenSSL copies it before the loop continues."""
    buffer = _buffers.get(loop)
    if buffer is None:
        buffer = _buffers[loop] = memoryview(bytearray(READ_BYTES))
    return buffer
