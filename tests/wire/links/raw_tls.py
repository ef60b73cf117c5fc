"""Run a TLS client that decides itself which bytes go onto the wire, and when."""

from __future__ import annotations

import asyncio
import socket
import ssl

from rollcast.wire.links.frames import FrameParser, LinkFrame
from rollcast.wire.links.handshake import PATH, UPGRADE_HEADERS

REQUEST = f"GET {PATH} HTTP/1.1\r\nHost: x\r\n".encode() + b"".join(
    f"{name}: {value}\r\n".encode() for name, value in UPGRADE_HEADERS.items()
)


class RawTls:
    """An open TLS connection; use ``connect``."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.sock = socket.socket()
        self.sock.setblocking(False)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing)
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def connect(cls, address: str, context: ssl.SSLContext) -> RawTls:
        raw = cls(context)
        host, port = address.split(":")
        await raw._loop.sock_connect(raw.sock, (host, int(port)))
        raw.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            try:
                raw._tls.do_handshake()
            except ssl.SSLWantReadError:
                await raw.put(b"")
                await raw._receive()
            else:
                await raw.put(b"")
                return raw

    def encrypted(self, data: bytes) -> bytes:
        """Return the bytes that carry ``data`` in one or more records of its own."""
        view = memoryview(data)
        while len(view):
            view = view[self._tls.write(view) :]
        return self._outgoing.read()

    async def put(self, raw_bytes: bytes) -> None:
        """Send bytes as they are, after the pending bytes of TLS itself."""
        await self._loop.sock_sendall(self.sock, self._outgoing.read() + raw_bytes)

    async def drip(self, raw_bytes: bytes, piece_bytes: int) -> None:
        """Send bytes in pieces, and let the event loop see each."""
        for start in range(0, len(raw_bytes), piece_bytes):
            await self.put(raw_bytes[start : start + piece_bytes])
            for _ in range(3):
                await asyncio.sleep(0)

    async def write(self, data: bytes) -> None:
        await self.put(self.encrypted(data))

    async def read(self) -> bytes:
        """Return some decrypted bytes; empty at the end.

        Raises:
            ConnectionError, ssl.SSLError: the other end cut the connection.
        """
        while True:
            try:
                return self._tls.read(1 << 16)
            except ssl.SSLWantReadError:
                if not await self._receive():
                    return b""
            except ssl.SSLZeroReturnError:
                return b""

    async def rest(self) -> bytes:
        """Return all decrypted bytes until the end."""
        data = b""
        while more := await self.read():
            data += more
        return data

    async def upgrade(self) -> None:
        """Request a link, which is granted."""
        await self.write(REQUEST + b"\r\n")
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            answer += await self.read()
        assert answer.startswith(b"HTTP/1.1 101 ")

    async def frames(self) -> list[LinkFrame]:
        """Return all frames until the end."""
        return FrameParser().feed(await self.rest())

    def close(self) -> None:
        self.sock.close()

    async def _receive(self) -> bytes:
        data = await self._loop.sock_recv(self.sock, 1 << 16)
        self._incoming.write(data)
        return data
