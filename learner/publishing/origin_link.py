"""Push versions over the learner's chunk link to the origin."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType

from learner.kill_points import kill_point
from learner.publishing.growth import Unsigned
from learner.publishing.push import Held, Output, Push, PushFailed, SendChunk, SendMessage
from rollcast.runtime.errors import MalformedMessage, Unreachable, WaitTimedOut
from rollcast.wire.identity.tls import TlsCredentials
from rollcast.wire.ids import ChunkIndex, EncodingId, PeerId, RunId, Version
from rollcast.wire.links.dialler import LinkDialler
from rollcast.wire.links.frames import LinkFrame, LinkMessageFrame, encode_chunk
from rollcast.wire.links.handshake import LinkLimits
from rollcast.wire.links.stream import LinkStream
from rollcast.wire.links.tcp import SocketOptions
from rollcast.wire.versions.chunks import BytesLike
from rollcast.wire.versions.records import KEYFRAME_ID

STALL_TIMEOUT_S = 15.0  # seconds without progress after which the link counts as broken
LIMITS = LinkLimits(write_timeout_s=STALL_TIMEOUT_S)

ChunkOf = Callable[[Version, EncodingId, ChunkIndex], BytesLike]


class LinkBroken(Exception):
    """The link ended or stalled; a new link may work."""


class OriginRefused(LinkBroken):
    """The origin answered that it cannot take the version now, for example because its disk is full."""


class OriginLink:
    """One open link, which carries one push after another. Use ``connect``; close it or use it as a context manager."""

    def __init__(self, dialler: LinkDialler, stream: LinkStream) -> None:
        self._dialler = dialler
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._push: Push | None = None
        self._chunk: ChunkOf | None = None
        self._asked: dict[tuple[Version, EncodingId, ChunkIndex], None] = {}  # in order, each sent once
        self._idle = asyncio.Event()  # set unless a chunk that was given to the stream has not left
        self._idle.set()
        self._moved_s = 0.0  # when the push last made progress
        self._finished: asyncio.Future[str] | None = None  # why the push failed; empty: it did not
        self._broken = ""
        stream.start(self)

    @classmethod
    async def connect(cls, address: str, origin: PeerId, *, run_id: str, credentials: TlsCredentials) -> OriginLink:
        """Open a link and complete the handshake, in which the other side must prove to be the run's origin.

        Raises:
            LinkBroken: the origin cannot be reached, or does not answer in time.
            WrongKey: a process with another key answers at the address.
            ProtocolMismatch: the origin speaks other protocol versions.
        """
        options = SocketOptions(silence_timeout_s=LIMITS.silence_timeout_s)
        dialler = LinkDialler(credentials, RunId(run_id), LIMITS, options)
        try:
            stream, _ = await dialler.dial(origin, address, role="origin")
            return cls(dialler, stream)
        except (Unreachable, WaitTimedOut, MalformedMessage) as error:
            await dialler.close()
            raise LinkBroken(f"no link to {address}: {error.what} {error.cause}".rstrip()) from None
        except BaseException:
            await dialler.close()
            raise

    async def push(self, push: Push, chunk: ChunkOf) -> None:
        """Carry out one push until the origin holds the version durably.

        Args:
            push: the state of the push protocol for one version.
            chunk: returns the payload of a chunk of one of the encodings of the version or its base.

        Raises:
            LinkBroken: the link ended or stalled; OriginRefused: the origin gave up on the push.
        """
        if self._broken:
            raise LinkBroken(self._broken)
        self._push, self._chunk, self._finished = push, chunk, self._loop.create_future()
        self._moved_s = self._loop.time()
        try:
            self._carry_out(push.start())
            while not self._finished.done():
                since_s = self._moved_s if self._idle.is_set() else self._loop.time()
                left_s = since_s + STALL_TIMEOUT_S - self._loop.time()
                if left_s <= 0:
                    raise LinkBroken("the origin sends nothing")
                await asyncio.wait((self._finished,), timeout=left_s)
            if reason := self._finished.result():
                raise LinkBroken(reason) if self._broken else OriginRefused(reason)
        finally:
            self._push = self._chunk = self._finished = None
            self._asked.clear()

    async def send_ahead(self, unsigned: Unsigned) -> None:
        """Send the chunks of a keyframe in order while they are written; it may be cancelled at any time.

        The origin keeps them for the push of the version. It does not answer, and reads as fast as it can store them.

        Raises:
            LinkBroken: the link ended, or its other end took no bytes for too long.
            Exception: the error of the writer.
        """
        for index in range(unsigned.chunk_count):
            payload = await unsigned.chunk(index)
            await self._idle.wait()  # the stream ends the link, and so this wait, if no bytes are taken
            if self._broken:
                raise LinkBroken(self._broken)
            self._send(unsigned.version, KEYFRAME_ID, ChunkIndex(index), payload)

    async def close(self) -> None:
        """Close the link once its written bytes have left, after two seconds at the latest."""
        await self._dialler.close()

    async def __aenter__(self) -> OriginLink:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ------------------------------------------------------------- rollcast.wire.links.receiver.LinkReceiver

    def frames(self, frames: Sequence[LinkFrame]) -> None:
        self._moved_s = self._loop.time()
        for frame in frames:
            if not isinstance(frame, LinkMessageFrame):
                self._stream.close("the learner requested no chunks", MalformedMessage.code)
                return
            if self._push is not None:
                self._carry_out(self._push.receive(frame.message))

    def drained(self) -> None:
        self._moved_s = self._loop.time()
        self._idle.set()
        self._send_next()

    def closed(self, reason: str, code: str) -> None:
        self._broken = f"{code} {reason}".strip()
        self._idle.set()
        self._finish(self._broken)

    # ------------------------------------------------------------- inside

    def _carry_out(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            match output:
                case SendMessage(message):
                    self._stream.send(message)
                case SendChunk(version, encoding_id, index):
                    self._asked[version, encoding_id, index] = None
                case PushFailed(reason):
                    self._finish(reason)
                case Held():
                    self._finish("")
        self._send_next()

    def _send_next(self) -> None:
        if not self._idle.is_set() or not self._asked or self._push is None or self._chunk is None:
            return
        version, encoding_id, index = key = next(iter(self._asked))
        del self._asked[key]
        payload = self._chunk(version, encoding_id, index)
        kill_point("pushing")
        self._send(version, encoding_id, index, payload)

    def _send(self, version: Version, encoding_id: EncodingId, index: ChunkIndex, payload: BytesLike) -> None:
        self._idle.clear()
        self._stream.send_chunk(encode_chunk(version, encoding_id, index, payload))

    def _finish(self, reason: str) -> None:
        if self._finished is not None and not self._finished.done():
            self._finished.set_result(reason)
