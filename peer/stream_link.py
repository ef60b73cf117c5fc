"""A link over the two bodies of one HTTP exchange, the same for both ends."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from ssl import SSLObject

import aiohttp
from aiohttp.abc import AbstractStreamWriter

from peer.transport import LinkClosed, LinkLimits
from rollcast.runtime.errors import WrongKey
from rollcast.wire.chunks import BytesLike
from rollcast.wire.link import FrameParser, LinkFrame, encode_chunk, encode_message
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.tls import Caller, caller_from_der

PATH = "/rollcast/link/1"

# Bytes that wait in this process for the socket. A newer version can overtake no more than this.
_WRITE_BUFFER_BYTES = 256 << 10
# The rest of a close: what is written is flushed for this long, then the connection is cut.
_FLUSH_S = 1.0


class StreamLink:
    """See peer.transport.Link.

    Args:
        caller: the other end, from its certificate.
        writer: of our body.
        reader: of the other end's body.
        transport: under both.
        on_close: ends the HTTP exchange on this side.
    """

    def __init__(
        self,
        caller: Caller,
        *,
        dialled: bool,
        writer: AbstractStreamWriter | aiohttp.web.StreamResponse,
        reader: aiohttp.StreamReader,
        transport: asyncio.Transport,
        limits: LinkLimits,
        on_close: Callable[[], None],
    ) -> None:
        self.peer_id = caller.peer_id
        self.role: str = caller.role
        self.dialled = dialled
        self.bytes_sent = 0
        self.bytes_received = 0
        self._writer = writer
        self._reader = reader
        self._transport = transport
        self._limits = limits
        self._on_close = on_close
        self._parser = FrameParser()
        self._frames: deque[LinkFrame] = deque()
        self._closed = False
        transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        tune_socket(transport, limits.silence_timeout_s)

    async def send(self, message: pb.LinkMessage) -> None:
        await self._write(encode_message(message))

    async def send_chunk(self, version: int, encoding_id: int, index: int, payload: BytesLike) -> None:
        await self._write(b"".join(encode_chunk(version, encoding_id, index, payload)))

    async def receive(self) -> LinkFrame:
        while not self._frames:
            try:
                data = await self._reader.readany()
            except (aiohttp.ClientError, aiohttp.web.RequestPayloadError, OSError) as error:
                raise LinkClosed(f"the link broke: {error or type(error).__name__}") from None
            if not data or self._closed:
                raise LinkClosed("the link was closed")
            self.bytes_received += len(data)
            self._frames.extend(self._parser.feed(data))
        return self._frames.popleft()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._on_close()
        self._transport.close()
        asyncio.get_running_loop().call_later(_FLUSH_S, self._transport.abort)

    async def _write(self, data: bytes) -> None:
        if self._closed:
            raise LinkClosed("the link was closed")
        try:
            async with asyncio.timeout(self._limits.write_timeout_s):
                await self._writer.write(data)
        except TimeoutError:
            raise LinkClosed(f"{self.peer_id} took no bytes for {self._limits.write_timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError, RuntimeError) as error:
            raise LinkClosed(f"the link broke: {error or type(error).__name__}") from None
        self.bytes_sent += len(data)


def caller_of(transport: asyncio.BaseTransport) -> Caller:
    """The other end's certificate, which TLS has verified against the run CA.

    Raises:
        WrongKey: there is none, or it names nobody.
    """
    tls: SSLObject | None = transport.get_extra_info("ssl_object")
    der = tls.getpeercert(binary_form=True) if tls is not None else None
    if der is None:
        raise WrongKey("the other end of a chunk link showed no certificate")
    return caller_from_der(der)


def tune_socket(transport: asyncio.BaseTransport, silence_timeout_s: float) -> None:
    """No delay for small frames; a host that vanished shows within ``silence_timeout_s`` even when nothing is sent."""
    sock = transport.get_extra_info("socket")
    if sock is None:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    probe_s = max(1, int(silence_timeout_s / 4))
    for name, value in (
        ("TCP_KEEPIDLE", probe_s),
        ("TCP_KEEPINTVL", probe_s),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", int(silence_timeout_s * 1000)),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
