"""Make a link of a stream of frames: it knows its other end, and counts and caps its share of the process's traffic."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from peer.links.rates import LinkRate
from peer.links.traffic import KERNEL_AHEAD_BYTES_MAX, TrafficClass
from peer.links.transport import LinkMeasurement, LinkReceiver
from rollcast.wire.identity.tls import Caller
from rollcast.wire.ids import PeerId, StripeId
from rollcast.wire.links.frames import LinkFrame, encode_chunk
from rollcast.wire.links.tcp import SocketFigures
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.token_bucket import TokenBucket
from rollcast.wire.versions.chunks import BytesLike


class FrameStream(Protocol):
    """A stream of frames: over TCP (rollcast.wire.links.stream.LinkStream) or over libp2p (peer.p2p.stream)."""

    bytes_sent: int
    bytes_received: int

    @property
    def congestion_control(self) -> str: ...

    @property
    def acknowledged_bytes(self) -> int | None: ...

    @property
    def full(self) -> bool: ...

    @property
    def waiting_bytes(self) -> int: ...

    def start(self, receiver: LinkReceiver) -> None: ...

    def limit_receive_buffer(self, size_bytes: int) -> None: ...

    def send(self, message: pb.LinkMessage) -> None: ...

    def send_chunk(self, frame: Sequence[BytesLike]) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def measure(self) -> SocketFigures: ...

    def close(self, reason: str, code: str = "") -> None: ...


class StreamLink:
    """See peer.links.transport.Link.

    Args:
        caller: the other end, from its certificate.
        traffic: counts and caps the bytes that pass.
    """

    def __init__(
        self, stream: FrameStream, caller: Caller, traffic: TrafficClass, *, dialled: bool, transport: str = "direct"
    ) -> None:
        self.peer_id: PeerId = caller.peer_id
        self.role: str = caller.role
        self.dialled = dialled
        self.transport = transport
        self.lan = traffic.lan
        self._rate = LinkRate()
        self._stream = stream
        self._traffic = traffic
        self._loop = asyncio.get_running_loop()
        self._receiver: LinkReceiver | None = None
        self._held: deque[list[BytesLike]] = deque()  # chunks that wait for the upload cap
        self._held_bytes = 0
        self._leaving_bytes = 0  # of chunks that stay in this process until drained
        self._waits = False  # whether the traffic counts this link as waiting
        self._counted_bytes = stream.bytes_received
        self._paused = False  # by the receiver
        self._throttled = False  # by the download cap
        self._cap: TokenBucket | None = None  # the download cap for which the kernel's buffer is set
        self._acknowledged_bytes = stream.acknowledged_bytes
        self._sent_before_bytes = stream.bytes_sent
        self._limit_kernel()

    @property
    def bytes_sent(self) -> int:
        return self._stream.bytes_sent

    @property
    def bytes_received(self) -> int:
        return self._stream.bytes_received

    # ------------------------------------------------------------- peer.links.transport.Link

    def start(self, receiver: LinkReceiver) -> None:
        self._receiver = receiver
        self._traffic.links.add(self)
        self._stream.start(self)

    def send(self, message: pb.LinkMessage) -> None:
        self._stream.send(message)

    def send_chunk(self, version: int, encoding_id: int, index: int, payload: BytesLike, stripe: StripeId) -> None:
        frame = encode_chunk(version, encoding_id, index, payload, stripe)
        if self._traffic.upload is not None:
            size_bytes = sum(map(len, frame))
            wait_s = self._traffic.upload.take(size_bytes, self._loop.time())
            if wait_s > 0 or self._held:
                self._held.append(frame)
                self._held_bytes += size_bytes
                self._note_waiting()
                self._loop.call_later(wait_s, self._release)
                return
        self._write(frame)

    def pause_reading(self) -> None:
        self._paused = True
        self._stream.pause_reading()

    def resume_reading(self) -> None:
        self._paused = False
        if not self._throttled:
            self._stream.resume_reading()

    def measure(self) -> LinkMeasurement:
        figures = self._stream.measure()
        unsent_bytes = figures.unsent_bytes + self._stream.waiting_bytes + self._held_bytes
        return LinkMeasurement(
            figures.rtt_s,
            unsent_bytes,
            self._stream.congestion_control,
            self._rate.sent_bytes_per_second(self._loop.time()),
            self._rate.received_bytes_per_second,
            figures.lost_share,
            figures.window_limited_share,
            self._rate.slow(self._traffic.waiting_links, self._loop.time()),
        )

    def close(self, reason: str, code: str = "") -> None:
        self._stream.close(reason, code)

    # ------------------------------------------------------------- rollcast.wire.links.receiver.LinkReceiver

    def frames(self, frames: Sequence[LinkFrame]) -> None:
        now = self._loop.time()
        size_bytes = self._stream.bytes_received - self._counted_bytes
        self._counted_bytes += size_bytes
        self._traffic.meter.received(size_bytes, now)
        self._rate.received(size_bytes, now)
        if self._traffic.download is not self._cap:
            self._limit_kernel()
        if self._cap is not None:
            self._cap.take(size_bytes, now)
            wait_s = self._cap.take(0, now)  # these bytes are here already: wait until they are paid for
            if wait_s > 0 and not self._throttled:
                self._throttled = True
                self._stream.pause_reading()
                self._loop.call_later(wait_s, self._go_on_reading)
        assert self._receiver is not None
        self._receiver.frames(frames)

    def drained(self) -> None:
        self._count_sent(self._leaving_bytes)
        self._leaving_bytes = 0
        assert self._receiver is not None
        self._receiver.drained()
        self._note_waiting()

    def closed(self, reason: str, code: str) -> None:
        self._held.clear()
        self._held_bytes = self._leaving_bytes = 0
        if self._waits:
            self._waits = False
            self._traffic.link_waits(False, self._loop.time())
            self._rate.waits(False, self._loop.time())
        self._traffic.links.discard(self)
        assert self._receiver is not None
        self._receiver.closed(reason, code)

    # ------------------------------------------------------------- peer.links.traffic.CountedLink

    def newly_acknowledged_bytes(self) -> int | None:
        sent_bytes = self._stream.bytes_sent - self._sent_before_bytes
        self._sent_before_bytes += sent_bytes
        before, self._acknowledged_bytes = self._acknowledged_bytes, self._stream.acknowledged_bytes
        if before is None or self._acknowledged_bytes is None:
            return None if sent_bytes else 0
        return self._acknowledged_bytes - before

    # ------------------------------------------------------------- inside

    def _write(self, frame: list[BytesLike]) -> None:
        waited_bytes = self._stream.waiting_bytes
        self._stream.send_chunk(frame)
        stays_bytes = min(self._stream.waiting_bytes - waited_bytes, sum(map(len, frame)))
        self._leaving_bytes += stays_bytes
        # Bytes that the kernel takes at once count only while other chunks wait: an idle uplink takes any number.
        left_bytes = sum(map(len, frame)) - stays_bytes
        if left_bytes > 0:
            self._count_sent(left_bytes)
        self._note_waiting()

    def _count_sent(self, size_bytes: int) -> None:
        now = self._loop.time()
        self._traffic.meter.sent(size_bytes, now)
        self._rate.sent(size_bytes, now)

    def _release(self) -> None:
        if self._held:
            frame = self._held.popleft()
            self._held_bytes -= sum(map(len, frame))
            self._write(frame)

    def _note_waiting(self) -> None:
        waits = self._stream.full or bool(self._held)
        if waits != self._waits:
            self._waits = waits
            now = self._loop.time()
            self._traffic.link_waits(waits, now)
            self._rate.waits(waits, now)

    def _limit_kernel(self) -> None:
        """Limit the kernel's receive buffer if the download cap has changed."""
        if self._cap is self._traffic.download:
            return
        self._cap = self._traffic.download
        self._stream.limit_receive_buffer(self._traffic.kernel_ahead_bytes or KERNEL_AHEAD_BYTES_MAX)

    def _go_on_reading(self) -> None:
        self._throttled = False
        if not self._paused:
            self._stream.resume_reading()
