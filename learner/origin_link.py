"""The learner's chunk link to the origin: one HTTPS request whose two bodies are streams of link frames."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from types import TracebackType

import aiohttp

from learner.push import Held, Push, PushFailed, SendChunk, SendMessage
from rollcast import __version__
from rollcast.runtime.errors import MalformedMessage, WrongKey
from rollcast.wire import protocol
from rollcast.wire.chunks import BytesLike
from rollcast.wire.ids import PeerId
from rollcast.wire.link import FrameParser, LinkMessageFrame, encode_chunk, encode_message
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.tls import TlsCredentials, caller_from_der

PATH = "/rollcast/link/1"
CONNECT_TIMEOUT_S = 10.0
STALL_TIMEOUT_S = 15.0  # an origin that says nothing for this long during a push is tried again on a new link
CLOSE_TIMEOUT_S = 0.5  # for the other side to close too
REASON_BYTES_MAX = 512  # of a refusal
QUEUE_FRAMES = 64  # frames that may wait for the socket; more only holds memory


class LinkBroken(Exception):
    """The link ended or stalled; a new one may work."""


class OriginLink:
    """One open link. Use ``connect``; close it or use it as a context manager."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._outgoing: asyncio.Queue[list[BytesLike] | None] = asyncio.Queue(QUEUE_FRAMES)
        self._parser = FrameParser()
        self._received: list[pb.LinkMessage] = []
        self._response: aiohttp.ClientResponse | None = None

    @classmethod
    async def connect(cls, address: str, origin: PeerId, *, run_id: str, credentials: TlsCredentials) -> OriginLink:
        """Open a link and greet; the other side must prove to be the run's origin.

        Raises:
            LinkBroken: it cannot be reached, or does not answer in time.
            WrongKey: somebody else answers there.
            ProtocolMismatch: it speaks other protocol versions.
        """
        connector = aiohttp.TCPConnector(ssl=credentials.ssl_client_context(), limit=1, force_close=True)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
        link = cls(aiohttp.ClientSession(connector=connector, timeout=timeout))
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await link._greet(address, origin, run_id)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            await link.close()
            raise LinkBroken(f"no link to {address}: {error or 'no answer in time'}") from None
        except BaseException:
            await link.close()
            raise
        return link

    async def push(self, push: Push, chunk: Callable[[int], memoryview]) -> None:
        """Carry out one push until the origin holds the version durably.

        Args:
            push: the protocol's state.
            chunk: payload of the keyframe's chunk with this index.

        Raises:
            LinkBroken: the link ended, stalled, or the origin gave up on it.
        """
        outputs = push.start()
        while True:
            for output in outputs:
                match output:
                    case SendMessage(message):
                        await self._send(encode_message(message))
                    case SendChunk(index):
                        await self._send(*encode_chunk(push.version, push.encoding_id, index, chunk(index)))
                    case PushFailed(reason):
                        raise LinkBroken(reason)
                    case Held():
                        return
            outputs = push.receive(await self._receive())

    async def close(self) -> None:
        """End the link: our side of it first, then the whole."""
        if self._response is not None:
            with contextlib.suppress(asyncio.QueueFull, aiohttp.ClientError, TimeoutError, OSError):
                self._outgoing.put_nowait(None)
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    while await self._response.content.readany():
                        pass
            self._response.close()
        await self._session.close()

    async def __aenter__(self) -> OriginLink:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _greet(self, address: str, origin: PeerId, run_id: str) -> None:
        hello = pb.LinkHello(protocol=protocol.range_to_pb(), run_id=run_id, software=f"rollcast {__version__}")
        await self._send(encode_message(pb.LinkMessage(hello=hello)))
        self._response = await self._session.post(f"https://{address}{PATH}", data=self._body())
        if self._response.status != 200:
            reason = (await self._response.content.read(REASON_BYTES_MAX)).decode("utf-8", "replace")
            raise LinkBroken(f"the origin answered {self._response.status} {reason}")
        self._check_certificate(origin)
        first = await self._receive()
        if first.WhichOneof("body") != "hello":
            raise LinkBroken(f"the origin did not greet {first.error.what[:200]}".rstrip())
        if first.hello.run_id != run_id:
            raise WrongKey(f"{address} belongs to another run", fix="see which origin uses that address")
        protocol.agree_with(first.hello.protocol)

    def _check_certificate(self, origin: PeerId) -> None:
        assert self._response is not None
        connection = self._response.connection
        tls = connection.transport.get_extra_info("ssl_object") if connection and connection.transport else None
        certificate = tls.getpeercert(binary_form=True) if tls else None
        if certificate is None:
            raise LinkBroken("the origin closed the link at once")
        caller = caller_from_der(certificate)
        if caller.peer_id != origin or caller.role != "origin":
            raise WrongKey(
                "the origin's address is answered by somebody else",
                cause=f"expected the origin {origin}, found the {caller.role} {caller.peer_id}",
                fix="see which process listens at the origin's address",
            )

    async def _body(self) -> AsyncIterator[BytesLike]:
        while (buffers := await self._outgoing.get()) is not None:
            for buffer in buffers:
                yield buffer

    async def _send(self, *buffers: BytesLike) -> None:
        try:
            async with asyncio.timeout(STALL_TIMEOUT_S):
                await self._outgoing.put(list(buffers))
        except TimeoutError:
            raise LinkBroken("the origin takes no bytes") from None

    async def _receive(self) -> pb.LinkMessage:
        assert self._response is not None
        try:
            async with asyncio.timeout(STALL_TIMEOUT_S):
                while not self._received:
                    data = await self._response.content.readany()
                    if not data:
                        raise LinkBroken("the origin closed the link")
                    self._received.extend(_messages(self._parser, data))
        except TimeoutError:
            raise LinkBroken("the origin says nothing") from None
        except (aiohttp.ClientError, OSError) as error:
            raise LinkBroken(f"the link broke: {error}") from None
        return self._received.pop(0)


def _messages(parser: FrameParser, data: bytes) -> list[pb.LinkMessage]:
    try:
        frames = parser.feed(data)
    except MalformedMessage as error:
        raise LinkBroken(f"the origin sends nonsense: {error.what}") from None
    if not all(isinstance(frame, LinkMessageFrame) for frame in frames):
        raise LinkBroken("the origin sends chunks that nobody asked for")
    return [frame.message for frame in frames if isinstance(frame, LinkMessageFrame)]
