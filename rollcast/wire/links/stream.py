"""Run a chunk link on an established TLS connection: frames in and frames out.

The connection comes from asyncio after its TLS handshake. From then on this class is the protocol right above the
socket: there is no stream reader, no task and no copy per frame, and the process wakes about once a chunk (see
TlsRecords).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

from rollcast.runtime.errors import MalformedMessage, RollcastError
from rollcast.wire.limits import LINK_WAITING_BYTES_MAX
from rollcast.wire.links.frames import FrameParser, LinkFrame, LinkMessageFrame, encode_error, encode_message
from rollcast.wire.links.output import LinkOutput
from rollcast.wire.links.raw_tls import READ_BYTES, TakenTls
from rollcast.wire.links.receiver import LinkClosed, LinkReceiver
from rollcast.wire.links.steering import LinkSteering
from rollcast.wire.links.tcp import (
    SocketFigures,
    SocketOptions,
    acknowledged_bytes,
    measure,
    set_receive_bytes,
    set_wake_bytes,
)
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.chunks import BytesLike

_CHUNKS_PER_BATCH = 64  # asked for at once
_MESSAGES_PER_BATCH = 256  # frames handled at once; other connections have their turn between two batches
_READS_MORE = 3  # of the socket when it is readable, as long as each fills the buffer
_LINGER_S = 1.0  # most seconds that an ended link waits for its last bytes to leave and the other end to close


class LinkStream(asyncio.BufferedProtocol):
    """One link, which ``take_over`` creates.

    Args:
        write_timeout_s: the link ends if bytes wait for the socket and none is taken within this time.
        on_lost: called once, when the connection has ended for good.
    """

    def __init__(
        self,
        tls: TakenTls,
        socket: asyncio.Transport,
        options: SocketOptions,
        write_timeout_s: float,
        on_lost: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._tls = tls
        self._socket = socket
        self._sock = socket.get_extra_info("socket")
        self._steering = LinkSteering(self._sock, options)
        self._on_lost = on_lost
        self._parser = FrameParser()
        self._wake_bytes = 1
        self._receiver: LinkReceiver | None = None
        self._early: list[LinkFrame] = []  # frames that arrived before start()
        self._first: asyncio.Future[None] | None = None
        self._paused = False  # whether the receiver has paused reading
        self._more = False  # the last read filled its buffer
        self._behind = False  # decrypted bytes wait for the next batch
        self._output = LinkOutput(tls, socket, self._sock)
        self._room: asyncio.TimerHandle | None = None  # while the limit of a slow link leaves no room
        self._undrained = False  # a chunk was sent since drained() was called last
        self._going_on = False  # _go_on is due
        self._ended: LinkClosed | None = None
        self._write_timeout_s = write_timeout_s
        self._watch: asyncio.TimerHandle | None = None
        self._linger: asyncio.TimerHandle | None = None
        self.bytes_sent = 0
        self.bytes_received = 0

    @classmethod
    def take_over(
        cls,
        transport: asyncio.BaseTransport,
        options: SocketOptions,
        *,
        write_timeout_s: float,
        on_lost: Callable[[], None] = lambda: None,
    ) -> LinkStream:
        """Take a TLS connection over from the protocol that asyncio gave it.

        Both ends must have read all earlier bytes, and neither may send before the other has taken over too.

        Raises:
            LinkClosed: the connection has closed, or the other end sent bytes too early.
        """
        if transport.is_closing():
            raise LinkClosed("the connection was closed at once")
        tls = TakenTls(transport)
        if tls.readable:
            raise LinkClosed("the other end sent bytes too early", MalformedMessage.code)
        if tls.socket is None:
            raise LinkClosed("the connection was closed at once")
        stream = cls(tls, tls.socket, options, write_timeout_s, on_lost)
        stream._attach()
        return stream

    # ------------------------------------------------------------- for the user of the link

    @property
    def remote_address(self) -> str:
        """Return the IP address of the other end; empty once the connection has closed.

        That of an IPv4 connection to a socket for both families is the IPv4 address (RFC 4291, section 2.5.5.2).
        """
        peer = self._socket.get_extra_info("peername")
        return str(peer[0]).removeprefix("::ffff:") if peer else ""

    @property
    def full(self) -> bool:
        """Whether so many bytes wait for the socket that the next chunk should not be chosen yet."""
        return self._output.full

    @property
    def waiting_bytes(self) -> int:
        """Return the number of bytes that wait in this process for the socket."""
        return self._output.waiting_bytes

    @property
    def acknowledged_bytes(self) -> int | None:
        """Return the bytes that the other end's kernel has acknowledged; None if the system does not tell."""
        return acknowledged_bytes(self._sock)

    @property
    def congestion_control(self) -> str:
        """Return the name of the socket's congestion control; empty if the system does not report it."""
        return self._steering.congestion_control

    async def first_frame(self) -> LinkFrame:
        """Wait for the first frame and return it; nothing more is read before ``start``.

        Raises:
            LinkClosed: the link ended before a frame arrived.
        """
        if not self._early and self._ended is None:
            self._first = self._loop.create_future()
            await self._first
        if not self._early:
            assert self._ended is not None
            raise self._ended
        return self._early.pop(0)

    def start(self, receiver: LinkReceiver) -> None:
        """Deliver all frames, and the end of the link, to ``receiver`` from now on."""
        self._receiver = receiver
        self._loop.call_soon(self._deliver_early)

    def limit_receive_buffer(self, size_bytes: int) -> None:
        """Let at most about ``size_bytes`` wait unread in the kernel.

        A limit on received bytes is only as tight as this: what waits there has used the downlink already.
        """
        if self._ended is None and not self._socket.is_closing():
            self._steering.fix_window()
            set_wake_bytes(self._sock, 1)  # a mark above the buffer's size would never be reached
            self._wake_bytes = 1
            set_receive_bytes(self._sock, size_bytes)

    def send(self, message: pb.LinkMessage) -> None:
        """Send a control message; if too many bytes wait already, end the link instead.

        Raises:
            MalformedMessage: the message is longer than receivers accept.
        """
        frame = encode_message(message)
        if self._ended is not None:
            return
        self._queue(frame)
        self._soon_go_on()
        if self.waiting_bytes > LINK_WAITING_BYTES_MAX:
            self._cut("too many messages wait to be taken")

    def send_chunk(self, frame: Sequence[BytesLike]) -> None:
        """Send the buffers of one chunk frame; the receiver's ``drained`` follows when there is room for the next."""
        if self._ended is not None:
            return
        self._undrained = True
        # The header is a TLS record of its own, as small as the remainder that it would otherwise leave at the end:
        # the receiver knows the chunk's length, and how long to sleep, before the chunk comes.
        self._queue(*frame)
        if self.full:
            self._pump()
        if not self.full:
            self._soon_go_on()

    def pause_reading(self) -> None:
        """Stop delivering frames; the other end is held back once the kernel's buffers are full."""
        if not self._paused:
            self._paused = True
            self._steer_reading()

    def resume_reading(self) -> None:
        """Deliver frames again."""
        if self._paused:
            self._paused = False
            if self._behind:
                self._loop.call_soon(self._catch_up)
            self._steer_reading()

    def measure(self) -> SocketFigures:
        """Return the kernel's figures of this connection."""
        return replace(measure(self._sock), lost_share=self._steering.lost_share)

    def close(self, reason: str, code: str = "") -> None:
        """End the link, and send the other end the reason unless it is empty.

        The receiver's ``closed`` is called without the code: the error is ours, not the other end's.
        """
        if self._ended is None and reason:
            self._queue(encode_error(reason, code))
        self.end(reason or "the link was closed here")

    def end(self, reason: str, code: str = "") -> None:
        """End the link; bytes that are written already still leave, within a second."""
        if self._ended is not None:
            return
        self._ended = LinkClosed(reason, code)
        self._loop.call_soon(self._tell_ended)
        now = self._loop.time()
        with contextlib.suppress(ssl.SSLError):
            self._output.pump(now, everything=True)
        self._tls.send_close_notify()
        with contextlib.suppress(ssl.SSLError):
            self._output.pump(now, everything=True)
        with contextlib.suppress(OSError):
            self._socket.write_eof()  # sent after the bytes that still wait
        self._steer_reading()
        self._linger = self._loop.call_later(_LINGER_S, self._socket.abort)

    # ------------------------------------------------------------- asyncio.BufferedProtocol

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._tls.buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._ended is not None:
            return  # read and discard: closing a socket with unread bytes would reset it and lose what we sent last
        self._take(nbytes)
        for _ in range(_READS_MORE):
            if not self._more or self._ended is not None or not self._socket.is_reading():
                return
            nbytes = self._read_socket()
            if not nbytes:
                return
            self._take(nbytes)

    def eof_received(self) -> bool:
        self.end("the link was closed")
        return False

    def pause_writing(self) -> None:
        self._output.paused(self._loop.time())
        self._note_waiting()

    def resume_writing(self) -> None:
        now = self._loop.time()
        self._output.resumed(now)
        self._note_waiting()
        self._steering.sending(now)
        self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._watch, self._linger, self._room):
            if timer is not None:
                timer.cancel()
        self._steering.ended(self._loop.time())
        self._tls.lost(exc)
        if self._ended is None:
            self._ended = LinkClosed(f"the link broke: {exc}" if exc else "the link was closed")
            self._tell_ended()
        self._on_lost()

    # ------------------------------------------------------------- inside

    def _attach(self) -> None:
        self._tls.take_over(self)
        if self._socket.get_write_buffer_size():
            self._output.paused(self._loop.time())
        self._socket.set_write_buffer_limits(high=0)  # pause_writing and resume_writing report when the kernel took all
        self._pump()
        self._watch = self._loop.call_later(self._write_timeout_s, self._check_progress, -1)

    def _queue(self, *buffers: BytesLike) -> None:
        self.bytes_sent += sum(map(len, buffers))
        self._output.write(*buffers)

    def _pump(self) -> None:
        if self._room is not None:
            return
        try:
            pause_s = self._output.pump(self._loop.time())
        except ssl.SSLError as error:
            self.end(_broken(error))
            return
        self._note_waiting()
        if pause_s:
            self._room = self._loop.call_later(pause_s, self._look_for_room)

    def _note_waiting(self) -> None:
        self._steering.waits(self.waiting_bytes, self._loop.time())

    def _look_for_room(self) -> None:
        self._room = None
        if self._ended is None:
            self._pump()
            self._go_on()

    def _soon_go_on(self) -> None:
        if not self._going_on:
            self._going_on = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Ask for chunks while there is room, then send them: many small ones leave in one piece."""
        self._going_on = False
        for _ in range(_CHUNKS_PER_BATCH):
            if not self._undrained or self.full or self._ended is not None:
                break
            self._undrained = False
            if self._receiver is not None:
                self._receiver.drained()
        if self._ended is None:
            self._pump()
            if self._undrained and not self.full:
                self._soon_go_on()

    def _take(self, size_bytes: int) -> None:
        self._more = size_bytes == READ_BYTES
        self._tls.receive(size_bytes)
        self._read()

    def _read_socket(self) -> int:
        """Receive what waits in the socket, without a round of the event loop. Returns 0 if nothing does.

        At the end of the connection, or after an error, the event loop finds the same once more and reports it.
        """
        self._more = False
        if sys.platform == "win32":
            return 0
        try:
            return os.readv(self._sock.fileno(), (self._tls.buffer,))
        except OSError:
            return 0

    def _read(self) -> None:
        """Decrypt the received bytes and deliver the frames that they complete."""
        frames: list[LinkFrame] = []
        problem: LinkClosed | None = None
        try:
            self._decrypt(frames)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            problem = LinkClosed("the link was closed")
        except ssl.SSLError as error:
            problem = LinkClosed(_broken(error))
        except LinkClosed as error:
            problem = error
        except RollcastError as error:
            problem = LinkClosed(error.what, error.code)
        if self._ended is None:
            self._pump()  # TLS itself may have an answer to send
        if frames:
            self._deliver(frames)
        if problem is not None:
            self._fail(problem)
        elif self._ended is None:
            self._set_wake_bytes()
            self._steering.received(self.bytes_received, self._wake_bytes, self._loop.time())

    def _decrypt(self, frames: list[LinkFrame]) -> None:
        """Decrypt frames until there are enough of them, or raise what ``TakenTls.fill`` and the parser raise."""
        parser, tls = self._parser, self._tls
        while True:
            buffer = parser.buffer()
            count = tls.fill(buffer)
            self.bytes_received += count
            frame = parser.filled(count)
            if frame is not None:
                if isinstance(frame, LinkMessageFrame) and frame.message.HasField("error"):
                    error = frame.message.error
                    raise LinkClosed(error.what or "the other end gave no reason", error.code or "unknown")
                frames.append(frame)
                if len(frames) >= _MESSAGES_PER_BATCH:
                    self._behind = True
                    self._loop.call_soon(self._catch_up)
                    self._steer_reading()
                    return

    def _deliver(self, frames: list[LinkFrame]) -> None:
        if self._receiver is not None:
            self._receiver.frames(frames)
            return
        self._early += frames
        self._wake_first()
        self._steer_reading()

    def _deliver_early(self) -> None:
        if self._ended is not None:
            self._tell_ended()
            return
        frames, self._early = self._early, []
        if frames and self._receiver is not None:
            self._receiver.frames(frames)
        self._catch_up()
        self._steer_reading()

    def _catch_up(self) -> None:
        if self._behind and self._may_deliver and self._ended is None:
            self._behind = False
            self._read()
            self._steer_reading()

    @property
    def _may_deliver(self) -> bool:
        return not self._paused and (self._receiver is not None or not self._early)

    def _fail(self, problem: LinkClosed) -> None:
        """End the link because the other end reported an error, caused one, or closed."""
        if problem.code == MalformedMessage.code and self._ended is None:
            self._queue(encode_error(problem.reason, problem.code))
        self.end(problem.reason, problem.code)

    def _cut(self, reason: str) -> None:
        """End a link at once, because its other end takes no bytes."""
        self.end(reason)
        self._socket.abort()

    def _steer_reading(self) -> None:
        wanted = self._ended is not None or (self._may_deliver and not self._behind)
        if self._socket.is_closing() or wanted == self._socket.is_reading():
            return
        if wanted:
            self._socket.resume_reading()
        else:
            self._socket.pause_reading()

    def _set_wake_bytes(self) -> None:
        """Let the kernel wake this process only when the rest of the TLS record or chunk has arrived.

        Fewer bytes are of no use. The end of the connection wakes the process whatever is set, so it cannot hang.
        """
        wake_bytes = min(self._tls.bytes_to_come(self._parser.missing_bytes), READ_BYTES)
        # While more waits than was read, the process is woken at once whatever is set, unless too much is set.
        if wake_bytes < self._wake_bytes or (wake_bytes != self._wake_bytes and not self._more):
            self._wake_bytes = wake_bytes
            set_wake_bytes(self._sock, wake_bytes)

    def _tell_ended(self) -> None:
        self._wake_first()
        receiver, self._receiver = self._receiver, None
        assert self._ended is not None
        if receiver is not None:
            if self._early:
                receiver.frames(self._early)
            receiver.closed(self._ended.reason, self._ended.code)

    def _wake_first(self) -> None:
        if self._first is not None and not self._first.done():
            self._first.set_result(None)

    def _check_progress(self, taken_before: int) -> None:
        """End the link if the other end has taken no bytes since the last check."""
        waiting, taken = self.waiting_bytes, self._output.taken_bytes
        if waiting and taken == taken_before:
            self._cut(f"the other end took no bytes for {self._write_timeout_s:g} s")
            return
        self._watch = self._loop.call_later(self._write_timeout_s, self._check_progress, taken if waiting else -1)


def _broken(error: ssl.SSLError) -> str:
    return f"the link broke: {error.reason or 'TLS failed'}"
