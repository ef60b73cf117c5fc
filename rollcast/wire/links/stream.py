"""A chunk link on an established TLS connection: frames in, frames out, nothing in between.

The connection comes from asyncio, its TLS handshake done. From then on this class is the protocol right above the
socket: no stream reader, no task and no copy per frame, and the process wakes about once a chunk (see TlsRecords).
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Sequence

from rollcast.runtime.errors import MalformedMessage, RollcastError
from rollcast.wire.limits import LINK_WAITING_BYTES_MAX
from rollcast.wire.links.frames import FrameParser, LinkFrame, LinkMessageFrame, encode_error, encode_message
from rollcast.wire.links.raw_tls import READ_BYTES, TakenTls
from rollcast.wire.links.receiver import LinkClosed, LinkReceiver
from rollcast.wire.links.tcp import SocketFigures, SocketOptions, measure, set_receive_bytes, set_wake_bytes, tune
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.chunks import BytesLike

# Of one batch: other connections get their turn in between.
_MESSAGES_PER_BATCH = 256
# After our last byte: until the other end closes too.
_LINGER_S = 1.0


class LinkStream(asyncio.BufferedProtocol):
    """One connection. Make it with ``take_over``.

    Args:
        write_timeout_s: what waits for the socket must move within this time, or the link ends.
        on_lost: called once, when the connection is gone for good.
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
        self._options = options
        self._on_lost = on_lost
        self._parser = FrameParser()
        self._wake_bytes = 1
        self._receiver: LinkReceiver | None = None
        self._early: list[LinkFrame] = []  # before start()
        self._first: asyncio.Future[None] | None = None
        self._paused = False  # by the receiver
        self._behind = False  # decrypted bytes wait for the next batch
        self._full = False  # something waits for the socket
        self._undrained = False  # a chunk was sent since drained() was called last
        self._written_bytes = 0
        self._ended: LinkClosed | None = None
        self._write_timeout_s = write_timeout_s
        self._watch: asyncio.TimerHandle | None = None
        self._linger: asyncio.TimerHandle | None = None
        self.congestion_control = ""
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
        """Take a TLS connection away from the protocol that it has.

        Both ends must have read all that was sent before, and nothing may be sent before the other end took over too.

        Raises:
            LinkClosed: the connection is gone, or the other end did not wait.
        """
        if transport.is_closing():
            raise LinkClosed("the connection was closed at once")
        tls = TakenTls(transport)
        if tls.readable:
            raise LinkClosed("the other end sent bytes before it might", MalformedMessage.code)
        if tls.socket is None:
            raise LinkClosed("the connection was closed at once")
        stream = cls(tls, tls.socket, options, write_timeout_s, on_lost)
        stream._attach()
        return stream

    # ------------------------------------------------------------- for whoever uses the link

    @property
    def remote_address(self) -> str:
        """IP address of the other end; empty once the connection is gone."""
        peer = self._socket.get_extra_info("peername")
        return str(peer[0]) if peer else ""

    @property
    def full(self) -> bool:
        """Whether something waits for the socket."""
        return self._full

    @property
    def waiting_bytes(self) -> int:
        """Bytes that wait in this process for the socket."""
        return self._socket.get_write_buffer_size()

    async def first_frame(self) -> LinkFrame:
        """The first frame; nothing more is read before ``start``.

        Raises:
            LinkClosed: the link ended before.
        """
        if not self._early and self._ended is None:
            self._first = self._loop.create_future()
            await self._first
        if not self._early:
            assert self._ended is not None
            raise self._ended
        return self._early.pop(0)

    def start(self, receiver: LinkReceiver) -> None:
        """Deliver everything to ``receiver`` from now on."""
        self._receiver = receiver
        self._loop.call_soon(self._deliver_early)

    def limit_receive_buffer(self, size_bytes: int) -> None:
        """Let at most about this much wait in the kernel to be read: what waits there has used the downlink already."""
        if self._ended is None and not self._socket.is_closing():
            set_wake_bytes(self._sock, 1)  # never more than the buffer holds
            self._wake_bytes = 1
            set_receive_bytes(self._sock, size_bytes)

    def send(self, message: pb.LinkMessage) -> None:
        """Send a control message; where too much waits already, the link ends instead.

        Raises:
            MalformedMessage: it is longer than receivers accept.
        """
        frame = encode_message(message)
        if self._ended is not None:
            return
        self._write(frame)
        if self.waiting_bytes > LINK_WAITING_BYTES_MAX:
            self._cut("too many messages wait to be taken")

    def send_chunk(self, frame: Sequence[BytesLike]) -> None:
        """Send the buffers of one chunk frame; ``drained`` follows."""
        if self._ended is not None:
            return
        self._undrained = True
        # The header is a TLS record of its own, as small as the remainder that it would otherwise leave at the end:
        # the receiver knows the chunk's length, and how long to sleep, before the chunk comes.
        self._write(*frame)
        if not self._full:
            self._loop.call_soon(self._tell_drained)

    def pause_reading(self) -> None:
        """Deliver nothing more; the other end is held back once the kernel's buffers are full."""
        if not self._paused:
            self._paused = True
            self._steer_reading()

    def resume_reading(self) -> None:
        """Go on delivering."""
        if self._paused:
            self._paused = False
            if self._behind:
                self._loop.call_soon(self._catch_up)
            self._steer_reading()

    def measure(self) -> SocketFigures:
        """The kernel's figures of this connection."""
        return measure(self._sock)

    def close(self, reason: str, code: str = "") -> None:
        """End the link, telling the other end why unless ``reason`` is empty. ``closed`` follows, without the code."""
        if self._ended is None and reason:
            self._write(encode_error(reason, code))
        self.end(reason or "the link was closed here")

    def end(self, reason: str, code: str = "") -> None:
        """End the link: what is written still leaves, within a second."""
        if self._ended is not None:
            return
        self._ended = LinkClosed(reason, code)
        self._loop.call_soon(self._tell_ended)
        self._tls.say_goodbye()
        self._flush()
        with contextlib.suppress(OSError):
            self._socket.write_eof()  # after what still waits
        self._steer_reading()
        self._linger = self._loop.call_later(_LINGER_S, self._socket.abort)

    # ------------------------------------------------------------- asyncio.BufferedProtocol

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._tls.buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._ended is not None:
            return  # read and dropped: closing a socket with unread bytes would reset what we sent last
        self._tls.receive(nbytes)
        self._read()

    def eof_received(self) -> bool:
        self.end("the link was closed")
        return False

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._tell_drained()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._watch, self._linger):
            if timer is not None:
                timer.cancel()
        self._tls.lost(exc)
        if self._ended is None:
            self._ended = LinkClosed(f"the link broke: {exc}" if exc else "the link was closed")
            self._tell_ended()
        self._on_lost()

    # ------------------------------------------------------------- inside

    def _attach(self) -> None:
        self.congestion_control = tune(self._sock, self._options)
        self._tls.take_over(self)
        self._full = self._socket.get_write_buffer_size() > 0
        self._socket.set_write_buffer_limits(high=0)  # pause_writing and resume_writing tell when the kernel took all
        self._flush()
        self._watch = self._loop.call_later(self._write_timeout_s, self._check_progress, -1)

    def _write(self, *buffers: BytesLike) -> None:
        try:
            for buffer in buffers:
                self.bytes_sent += len(buffer)
                self._tls.write(buffer)
        except ssl.SSLError as error:
            self.end(_broken(error))
        self._flush()

    def _flush(self) -> None:
        data = self._tls.output()
        if data:
            self._written_bytes += len(data)
            self._socket.write(data)

    def _read(self) -> None:
        """Decrypt what came, and deliver the frames that it completes."""
        frames: list[LinkFrame] = []
        problem: LinkClosed | None = None
        try:
            self._decrypt(frames)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            problem = LinkClosed(_broken(error))
        except LinkClosed as error:
            problem = error
        except RollcastError as error:
            problem = LinkClosed(error.what, error.code)
        self._flush()  # an answer of TLS itself
        if frames:
            self._deliver(frames)
        if problem is not None:
            self._fail(problem)
        elif self._ended is None:
            self._set_wake_bytes()

    def _decrypt(self, frames: list[LinkFrame]) -> None:
        parser, tls = self._parser, self._tls
        while True:
            buffer = parser.buffer()
            count = tls.read(buffer)
            if not count:
                raise LinkClosed("the link was closed")
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
            if not tls.readable:
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
        """The other end reported an error, made one, or closed."""
        if problem.code == MalformedMessage.code and self._ended is None:
            self._write(encode_error(problem.reason, problem.code))
        self.end(problem.reason, problem.code)

    def _cut(self, reason: str) -> None:
        """End a link whose other end would not take what is written anyway."""
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
        """Nothing can be done with less than the rest of a record or of a chunk, so nothing is lost by waiting for it.

        Less than that never comes for good: the end of the connection wakes us whatever was set.
        """
        wake_bytes = min(self._tls.bytes_to_come(self._parser.missing_bytes), READ_BYTES)
        if wake_bytes != self._wake_bytes:
            self._wake_bytes = wake_bytes
            set_wake_bytes(self._sock, wake_bytes)

    def _tell_drained(self) -> None:
        if self._undrained and not self._full and self._ended is None:
            self._undrained = False
            if self._receiver is not None:
                self._receiver.drained()

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
        """Give up on an other end that takes nothing."""
        waiting = self.waiting_bytes
        taken = self._written_bytes - waiting
        if waiting and taken == taken_before:
            self._cut(f"the other end took no bytes for {self._write_timeout_s:g} s")
            return
        self._watch = self._loop.call_later(self._write_timeout_s, self._check_progress, taken if waiting else -1)


def _broken(error: ssl.SSLError) -> str:
    return f"the link broke: {error.reason or 'TLS failed'}"
