"""Serve mirror files through the link interface: the other end is not a process but files read by byte ranges.

To the relay such a link is a neighbour that holds the files' encodings: it answers Want with Have (and the chunk list,
if there is one) or Cancel, and Request with chunks of no stripe. Its chunks are verified like any others. Messages that
concern only a receiving process are ignored.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

import structlog

from peer.links.neighbours import EncodingKey
from peer.links.traffic import TrafficClass
from peer.links.transport import LinkMeasurement, LinkReceiver
from peer.mirrors.http_ranges import Busy, NotThere
from peer.mirrors.range_queue import ChunkCutter, ChunkRange, RangeQueue
from rollcast.runtime.errors import RollcastError
from rollcast.wire.ids import ChunkIndex, EncodingId, PeerId, StripeId, Version
from rollcast.wire.limits import TEXT_LENGTH_MAX
from rollcast.wire.links.frames import NO_STRIPE, ChunkFrame, LinkFrame, LinkMessageFrame
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.chunks import BytesLike, bitmap_has
from rollcast.wire.versions.records import Manifest, VerifiedVersion

log = structlog.get_logger()

_CHUNKS_ASKED_MOST = 1 << 16
"""More than the relay ever requests at a time; beyond it the link is closed, so that a bug cannot fill the memory."""
_FINDING_MOST = 64

VersionOf = Callable[[Version], VerifiedVersion | None]
"""Returns the verified announcement of a version; None if it is not known."""


@dataclass(frozen=True, slots=True)
class Holding:
    """The chunks of one encoding that a source has; ``chunk_list`` is empty if it has no list."""

    bitmap: bytes
    complete: bool
    chunk_list: bytes = b""


class ChunkSource(Protocol):
    """The files behind a virtual link."""

    async def find(self, verified: VerifiedVersion, manifest: Manifest) -> Holding:
        """Return which chunks of an encoding the source has.

        Raises:
            NotThere: it has none of them.
            Busy: it cannot answer now.
            RollcastError: it cannot be used.
        """

    def read(self, verified: VerifiedVersion, manifest: Manifest, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        """Yield bytes [start, stop) of the encoding as they come; raises the errors of ``find``."""


@dataclass(frozen=True, slots=True)
class VirtualLinkLimits:
    """Bounds of the load on a source.

    Args:
        reads_most: ranges read at a time.
        range_bytes_most: bytes of one range.
        failures_most: failures in a row after which the link is closed.
        backoff_first_s, backoff_most_s: ceilings of the wait after a failure, the first and the longest.
        wait_s_most: the link is closed if the source asks for a longer wait.
    """

    reads_most: int = 4
    range_bytes_most: int = 4 << 20
    failures_most: int = 4
    backoff_first_s: float = 0.25
    backoff_most_s: float = 8.0
    wait_s_most: float = 30.0


class VirtualLink:
    """See peer.links.transport.Link. Make it inside a running event loop.

    Args:
        role: mirror, or disk for files of this machine.
        source: the files.
        traffic: counts and caps the bytes received.
        versions: returns the announcements that this process has verified, which say how encodings are cut.
        on_closed: called once when the link has ended.
    """

    def __init__(
        self,
        peer_id: PeerId,
        role: str,
        source: ChunkSource,
        traffic: TrafficClass,
        versions: VersionOf,
        limits: VirtualLinkLimits,
        on_closed: Callable[[VirtualLink], None],
    ) -> None:
        self.peer_id = peer_id
        self.role = role
        self.dialled = True
        self.transport = "mirror"
        self.lan = False
        self.bytes_sent = 0
        self.bytes_received = 0
        self._source = source
        self._traffic = traffic
        self._versions = versions
        self._limits = limits
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._queue = RangeQueue(limits.range_bytes_most)
        self._held: dict[EncodingKey, Holding] = {}
        self._finding: dict[EncodingKey, bool] = {}  # whether its chunk list is wanted
        self._tasks: set[asyncio.Task[None]] = set()
        self._reads = 0
        self._failures = 0
        self._quiet_until_s = 0.0
        self._receiver: LinkReceiver | None = None
        self._readable = asyncio.Event()  # set once it is started and while reading is not paused
        self._ended: tuple[str, str] | None = None

    # ------------------------------------------------------------ what the relay calls

    def start(self, receiver: LinkReceiver) -> None:
        self._receiver = receiver
        self._readable.set()
        if self._ended is not None:
            self._loop.call_soon(receiver.closed, *self._ended)

    def send(self, message: pb.LinkMessage) -> None:
        if self._ended is not None:
            return
        match message.WhichOneof("body"):
            case "want":
                self._want(_key_of(message.want), message.want.chunk_list)
            case "request":
                self._request(_key_of(message.request), message.request.indices)
            case "cancel":
                self._queue.drop(_key_of(message.cancel))
            case _:
                pass

    def send_chunk(self, version: int, encoding_id: int, index: int, payload: BytesLike, stripe: StripeId) -> None:
        """Drop the chunk: a mirror receives nothing."""
        if self._receiver is not None:
            self._loop.call_soon(self._drained)

    def pause_reading(self) -> None:
        self._readable.clear()

    def resume_reading(self) -> None:
        if self._receiver is not None:
            self._readable.set()

    def measure(self) -> LinkMeasurement:
        return LinkMeasurement(0.0, 0, "")

    def close(self, reason: str, code: str = "") -> None:
        self._end(reason)

    # ------------------------------------------------------------ requests

    def _want(self, key: EncodingKey, chunk_list: bool) -> None:
        if key in self._finding:
            self._finding[key] = self._finding[key] or chunk_list
        elif len(self._finding) >= _FINDING_MOST:
            self._end("too many encodings were requested at a time")
        else:
            self._finding[key] = chunk_list
            self._spawn(self._find(key))

    def _request(self, key: EncodingKey, indices: Sequence[int]) -> None:
        manifest = self._manifest(key)
        if manifest is None:
            self._spawn(self._cancel(key, "this version is not known here"))
            return
        held = self._held.get(key)
        wanted = [index for index in indices if index < manifest.chunk_count]
        wanted = [index for index in wanted if held is None or held.complete or bitmap_has(held.bitmap, index)]
        if held is not None and len(wanted) < len(indices):
            self._spawn(self._deliver(_have(key, manifest, held)))
        self._queue.add(key, manifest, wanted)
        if len(self._queue) > _CHUNKS_ASKED_MOST:
            self._end("too many chunks were requested at a time")
        self._pump()

    def _manifest(self, key: EncodingKey) -> Manifest | None:
        verified = self._versions(key.version)
        return verified.manifest(key.encoding_id) if verified is not None else None

    # ------------------------------------------------------------ what the source has

    async def _find(self, key: EncodingKey) -> None:
        try:
            while self._ended is None:
                verified, manifest = self._versions(key.version), self._manifest(key)
                if verified is None or manifest is None:
                    await self._cancel(key, "this version is not known here")
                    return
                began_s = self._loop.time()
                try:
                    held = await self._source.find(verified, manifest)
                except NotThere as missing:
                    await self._cancel(key, str(missing))
                    return
                except Busy as busy:
                    self._failed(busy, began_s)
                    await asyncio.sleep(max(0.0, self._quiet_until_s - self._loop.time()))
                    continue
                self._failures = 0
                await self._report(key, manifest, held)
                return
        except RollcastError as error:
            self._end(error.what, error.code)
        finally:
            self._finding.pop(key, None)

    async def _report(self, key: EncodingKey, manifest: Manifest, held: Holding) -> None:
        self._held[key] = Holding(held.bitmap, held.complete)
        await self._received(len(held.chunk_list))
        if self._finding[key] and held.chunk_list:
            hashes = pb.ChunkList(version=key.version, encoding_id=key.encoding_id, hashes=held.chunk_list)
            await self._deliver(pb.LinkMessage(chunk_list=hashes))
        await self._deliver(_have(key, manifest, held))

    async def _cancel(self, key: EncodingKey, reason: str) -> None:
        self._queue.drop(key)
        self._held.pop(key, None)
        log.info("not on this mirror", mirror=self.peer_id, version=key.version, encoding=key.encoding_id, why=reason)
        cancel = pb.Cancel(version=key.version, encoding_id=key.encoding_id, reason=reason[:TEXT_LENGTH_MAX])
        await self._deliver(pb.LinkMessage(cancel=cancel))

    # ------------------------------------------------------------ reading

    def _pump(self) -> None:
        """Begin as many reads as are allowed now."""
        if self._ended is not None or self._loop.time() < self._quiet_until_s:
            return  # it is called again when the wait ends
        while self._reads < self._limits.reads_most and (part := self._queue.take()) is not None:
            self._reads += 1
            self._spawn(self._read(part))

    async def _read(self, part: ChunkRange) -> None:
        began_s = self._loop.time()
        try:
            await self._read_chunks(part)
        except NotThere as missing:
            await self._cancel(part.key, str(missing))
        except Busy as busy:
            self._failed(busy, began_s)
        except RollcastError as error:
            self._end(error.what, error.code)
        finally:
            self._queue.put_back(part)
            self._reads -= 1
            self._pump()

    async def _read_chunks(self, part: ChunkRange) -> None:
        verified, manifest = self._versions(part.key.version), self._manifest(part.key)
        if verified is None or manifest is None:
            raise NotThere("this version is not known here any more")
        cutter = ChunkCutter(part, manifest)
        async with aclosing(self._source.read(verified, manifest, part.start_bytes, part.stop_bytes)) as pieces:
            async for piece in pieces:
                await self._received(len(piece))
                await self._readable.wait()
                frames = self._frames(part.key, cutter.feed(piece))
                if frames:
                    self._failures = 0
                    self._hand_over(frames)
                if cutter.done or not self._queue.is_asked(part):
                    return
        raise Busy("the answer broke off")

    def _frames(self, key: EncodingKey, chunks: Sequence[tuple[ChunkIndex, memoryview]]) -> list[LinkFrame]:
        return [
            ChunkFrame(key.version, key.encoding_id, index, NO_STRIPE, payload)
            for index, payload in chunks
            if self._queue.arrived(key, index)
        ]

    def _failed(self, busy: Busy, began_s: float) -> None:
        """Pause the whole link after a failure, because all its reads use the same server."""
        if began_s >= self._quiet_until_s:  # otherwise it shares the cause of the last failure
            self._failures += 1
        limits = self._limits
        if self._failures > limits.failures_most or busy.wait_s > limits.wait_s_most:
            self._end(f"the mirror cannot answer now: {busy}")
            return
        ceiling_s = min(limits.backoff_most_s, limits.backoff_first_s * 2.0 ** (self._failures - 1))
        # All clients return after a wait that the server named: the jitter spreads them.
        delay_s = busy.wait_s + random.uniform(0.0, ceiling_s)
        self._quiet_until_s = max(self._quiet_until_s, self._loop.time() + delay_s)
        self._loop.call_at(self._quiet_until_s, self._pump)

    # ------------------------------------------------------------ inside

    def _end(self, reason: str, code: str = "") -> None:
        """Close the link; ``code`` is the code of the source's error, or empty."""
        if self._ended is not None:
            return
        self._ended = (reason, code)
        for task in self._tasks:
            task.cancel()
        if self._receiver is not None:
            self._loop.call_soon(self._receiver.closed, reason, code)
        self._loop.call_soon(self._on_closed, self)

    async def _received(self, size_bytes: int) -> None:
        """Count bytes; under a cap, wait until the next ones may come."""
        now = self._loop.time()
        self.bytes_received += size_bytes
        self._traffic.meter.received(size_bytes, now)
        if self._traffic.download is not None:
            await asyncio.sleep(self._traffic.download.take(size_bytes, now))

    async def _deliver(self, message: pb.LinkMessage) -> None:
        await self._readable.wait()
        self._hand_over([LinkMessageFrame(message)])

    def _hand_over(self, frames: Sequence[LinkFrame]) -> None:
        if self._ended is None and self._receiver is not None:
            self._receiver.frames(frames)

    def _drained(self) -> None:
        if self._ended is None and self._receiver is not None:
            self._receiver.drained()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("mirror link failed", mirror=self.peer_id, exc_info=error)
            self._end("internal error, see the log")


def _key_of(message: pb.Want | pb.Request | pb.Cancel) -> EncodingKey:
    return EncodingKey(Version(message.version), EncodingId(message.encoding_id))


def _have(key: EncodingKey, manifest: Manifest, held: Holding) -> pb.LinkMessage:
    return pb.LinkMessage(
        have=pb.Have(
            version=key.version,
            encoding_id=key.encoding_id,
            chunk_count=manifest.chunk_count,
            bitmap=b"" if held.complete else held.bitmap,
            complete=held.complete,
        )
    )
