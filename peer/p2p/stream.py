"""Send and receive the frames of a p2p link on the event loop; the counterpart of rollcast.wire.links.stream."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from peer.p2p.streams.buffers import LinkBuffers
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.limits import LINK_WAITING_BYTES_MAX
from rollcast.wire.links.frames import FrameParser, LinkFrame, LinkMessageFrame, encode_error, encode_message
from rollcast.wire.links.receiver import LinkClosed, LinkReceiver
from rollcast.wire.links.tcp import SocketFigures, SocketOptions, acknowledged_bytes, measure, tune
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.chunks import BytesLike

# Messages delivered in one batch; other links get their turn between two batches.
_MESSAGES_PER_BATCH = 256


class P2pStream:
    """One p2p link, with the methods of rollcast.wire.links.stream.LinkStream.

    Args:
        remote_address: IP address of the other end; empty: not known.
        socket: TCP socket of the lane that carries what this end sends, or None.
        write_timeout_s: seconds within which some of the waiting bytes must leave, or the link ends.
        on_lost: called once, when the link is gone for good.
    """

    def __init__(
        self,
        buffers: LinkBuffers,
        remote_address: str,
        socket: Any,
        options: SocketOptions,
        *,
        write_timeout_s: float,
        on_lost: Callable[[], None],
    ) -> None:
        self.remote_address = remote_address
        self.bytes_sent = 0
        self.bytes_received = 0
        self.congestion_control = tune(socket, options) if socket is not None else ""
        self._socket = socket
        self._loop = asyncio.get_running_loop()
        self._buffers = buffers
        self._on_lost = on_lost
        self._parser = FrameParser()
        self._frames: deque[LinkFrame] = deque()  # parsed, not delivered
        self._receiver: LinkReceiver | None = None
        self._first: asyncio.Future[None] | None = None
        self._paused = False
        self._scheduled = False
        self._undrained = False
        self._problem: LinkClosed | None = None  # reported once everything that came before is delivered
        self._ended: LinkClosed | None = None
        self._lost = False
        self._write_timeout_s = write_timeout_s
        self._watch = self._loop.call_later(write_timeout_s, self._check_progress, -1)
        buffers.on_change = self._changed
        self._loop.call_soon(self._changed)

    # ------------------------------------------------------------- for users of the link

    @property
    def full(self) -> bool:
        """Return whether more than one piece waits for libp2p."""
        return self._buffers.full

    @property
    def waiting_bytes(self) -> int:
        """Return the bytes that wait in this process."""
        return self._buffers.leaving_bytes

    @property
    def acknowledged_bytes(self) -> int | None:
        """Return the bytes that were acknowledged on that lane; None over a relay, or if the system does not tell."""
        return acknowledged_bytes(self._socket) if self._socket is not None else None

    async def first_frame(self) -> LinkFrame:
        """Return the first frame; no other is delivered before ``start``.

        Raises:
            LinkClosed: the link ended before.
        """
        self._parse()
        if not self._frames and self._problem is None and self._ended is None:
            self._first = self._loop.create_future()
            await self._first
        if self._frames:
            return self._frames.popleft()
        raise self._problem or self._ended or LinkClosed("the link was closed")

    def start(self, receiver: LinkReceiver) -> None:
        """Deliver everything to ``receiver`` from now on."""
        self._receiver = receiver
        self._schedule()

    def limit_receive_buffer(self, size_bytes: int) -> None:
        """Let at most about ``size_bytes`` wait here to be taken."""
        self._buffers.limit_window(size_bytes)

    def send(self, message: pb.LinkMessage) -> None:
        """Send a control message; if too much waits already, the link ends instead.

        Raises:
            MalformedMessage: the message is longer than receivers accept.
        """
        frame = encode_message(message)
        if self._ended is not None:
            return
        self._write(frame)
        if self.waiting_bytes > LINK_WAITING_BYTES_MAX:
            self._cut("too many messages wait to be taken")

    def send_chunk(self, frame: Sequence[BytesLike]) -> None:
        """Send the buffers of one chunk frame; the receiver's ``drained`` is called once there is room for more."""
        if self._ended is None:
            self._undrained = True
            self._write(*frame)
            if not self.full:
                self._loop.call_soon(self._changed)

    def pause_reading(self) -> None:
        """Deliver nothing more; the other end is held back once its window is used."""
        self._paused = True

    def resume_reading(self) -> None:
        """Resume the delivery."""
        if self._paused:
            self._paused = False
            self._schedule()

    def measure(self) -> SocketFigures:
        """Return the kernel's figures of the lane that carries what this end sends; zeros over a relay."""
        return measure(self._socket) if self._socket is not None else SocketFigures()

    def close(self, reason: str, code: str = "") -> None:
        """End the link, and report ``reason`` to the other end unless it is empty.

        The receiver's ``closed`` follows, without the code.
        """
        if self._ended is None and reason:
            self._write(encode_error(reason, code))
        self.end(reason or "the link was closed here")

    def end(self, reason: str, code: str = "") -> None:
        """End the link; what was given to send still leaves, within a second."""
        if self._ended is not None:
            return
        self._ended = LinkClosed(reason, code)
        self._frames.clear()
        self._buffers.finish()
        self._watch.cancel()
        self._loop.call_soon(self._notify_ended)

    def give_up(self, reason: str) -> None:
        """End the link because the libp2p thread has ended."""
        self._buffers.end(reason)

    # ------------------------------------------------------------- inside

    def _write(self, *buffers: BytesLike) -> None:
        self.bytes_sent += sum(map(len, buffers))
        self._buffers.give(buffers)

    def _changed(self) -> None:
        """Handle news of the libp2p thread: bytes came, bytes left, or the link ended."""
        if self._undrained and not self.full and self._ended is None:
            self._undrained = False
            if self._receiver is not None:
                self._receiver.drained()
        self._deliver()
        if self._buffers.over and not self._lost:
            self._lost = True
            self._on_lost()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._deliver_scheduled)

    def _deliver_scheduled(self) -> None:
        self._scheduled = False
        self._deliver()

    def _deliver(self) -> None:
        """Deliver one batch of what came; after the last one, end the link if there is a reason to."""
        if self._ended is not None:
            self._drop()
            self._notify_ended()
            return
        if self._receiver is None:
            if self._first is not None:
                self._parse()
            return
        if self._paused:
            if self._buffers.broken:
                self.end(self._buffers.over)
            return
        self._parse()
        batch = list(islice(self._frames, _MESSAGES_PER_BATCH))
        for _ in batch:
            self._frames.popleft()
        if batch:
            self._receiver.frames(batch)
        if self._frames or (batch and self._problem is None):
            self._schedule()
        elif self._problem is not None and self._ended is None:
            self._fail(self._problem)

    def _parse(self) -> None:
        """Parse until there is something to deliver, or all that came is parsed."""
        while not self._frames and self._problem is None:
            data = self._buffers.take()
            if data is None:
                if self._buffers.over:
                    # ``over`` is set after the last bytes came, perhaps since the call of ``take`` above.
                    data = self._buffers.take()
                    if data is None:
                        self._problem = LinkClosed(self._buffers.over)
                        break
                else:
                    return
            self.bytes_received += len(data)
            self._take_frames(data)
            self._buffers.consumed(len(data))
        if self._first is not None and not self._first.done():
            self._first.set_result(None)

    def _take_frames(self, data: BytesLike) -> None:
        try:
            frames = self._parser.feed(data)
        except MalformedMessage as error:
            self._problem = LinkClosed(error.what, error.code)
            return
        for frame in frames:
            if isinstance(frame, LinkMessageFrame) and frame.message.HasField("error"):
                reported = frame.message.error
                what = reported.what or "the other end gave no reason"
                self._problem = LinkClosed(what, reported.code or "unknown")
                return
            self._frames.append(frame)

    def _fail(self, problem: LinkClosed) -> None:
        """End the link because the other end reported an error, made one, or closed it."""
        if problem.code == MalformedMessage.code:
            self._write(encode_error(problem.reason, problem.code))
        self.end(problem.reason, problem.code)

    def _cut(self, reason: str) -> None:
        """End the link at once, because its other end would not take what is still to be written."""
        self.end(reason)
        self._buffers.abort()

    def _drop(self) -> None:
        """Discard what still comes after the end."""
        while (data := self._buffers.take()) is not None:
            self._buffers.consumed(len(data))

    def _notify_ended(self) -> None:
        if self._first is not None and not self._first.done():
            self._first.set_result(None)
        receiver, self._receiver = self._receiver, None
        assert self._ended is not None
        if receiver is not None:
            receiver.closed(self._ended.reason, self._ended.code)

    def _check_progress(self, gone_before: int) -> None:
        """End the link if the other end took nothing since the last check; otherwise schedule the next check."""
        waiting, gone = self._buffers.leaving_bytes, self._buffers.gone_bytes
        if waiting and gone == gone_before:
            self._cut(f"the other end took no bytes for {self._write_timeout_s:g} s")
            return
        self._watch = self._loop.call_later(self._write_timeout_s, self._check_progress, gone if waiting else -1)
