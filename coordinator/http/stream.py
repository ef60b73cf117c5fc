"""Send server-sent events once a second, encoded once for all listeners.

Each topic's text is made, and compressed, once a tick, and only while a reader listens to it: twenty pages cost twenty
writes. The compressed parts of a tick are whole deflate blocks with a window of their own (RFC 1951, section 3.2.3), so
that the same bytes fit into every reader's gzip stream, whatever came before them there.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import structlog
from aiohttp import web

from coordinator.http.auth import Gate
from coordinator.http.requests import error_response
from coordinator.http.routes import Caller, JsonText, RawRoute, Topic
from rollcast.runtime.errors import MalformedMessage

log = structlog.get_logger()

INTERVAL_S = 1.0
WRITE_DEADLINE_S = 5.0  # a reader that takes longer counts as disconnected
WAITING_MAX = 5  # ticks that may wait for a slow reader
READERS_MAX = 64  # pages at once; further ones are refused
QUIET_TICKS_MAX = 5  # after so many without news a comment shows both sides that the other is alive
RETRY = b"retry: 1000\n\n"
BEAT = b": nothing new\n\n"
GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"  # RFC 1952, section 2.3: no name, no time


@dataclass(eq=False, slots=True)
class _Reader:
    """One page that listens."""

    topics: frozenset[str]
    caller: Caller
    request: web.Request
    gzip: bool
    waiting: asyncio.Queue[bytes] = field(default_factory=lambda: asyncio.Queue(WAITING_MAX))
    quiet_ticks: int = 0
    has_ended: bool = False


@dataclass(slots=True)
class _Event:
    """A topic's newest message."""

    plain: bytes
    gzip: bytes = b""  # compressed when first needed

    def body(self, *, gzip: bool) -> bytes:
        if gzip and not self.gzip:
            self.gzip = compressed(self.plain)
        return self.gzip if gzip else self.plain


class Hub:
    """Sends topics to readers. ``serve`` handles a request; ``close`` ends all streams."""

    def __init__(self, topics: Sequence[Topic], gate: Gate, *, interval_s: float = INTERVAL_S) -> None:
        self._topics = {topic.name: topic for topic in topics}
        self._gate = gate
        self._interval_s = interval_s
        self._readers: set[_Reader] = set()
        self._newest: dict[str, _Event] = {}  # of topics without a ``first`` of their own, while a reader listens
        self._ticker: asyncio.Task[None] | None = None
        self._closing = False

    @property
    def readers(self) -> int:
        """Return the number of readers that listen."""
        return len(self._readers)

    def route(self) -> RawRoute:
        """Return the route of the stream."""
        return RawRoute(
            "GET",
            "/api/v1/stream",
            "viewer",
            self.serve,
            f"Send server-sent events of ?topics=, separated by commas: {', '.join(self._topics)}.",
            "text/event-stream",
        )

    async def serve(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        """Send the requested topics until the reader disconnects, is too slow, or its token ends.

        Raises:
            MalformedMessage: a topic is unknown, or none is requested.
        """
        names = frozenset(name for name in request.query.get("topics", "").split(",") if name)
        if not names or not names <= set(self._topics):
            raise MalformedMessage("?topics= is empty or names an unknown topic", fix=f"use {', '.join(self._topics)}")
        if len(self._readers) >= READERS_MAX or self._closing:
            return error_response(503, MalformedMessage("too many pages are open", fix="close one"))
        gzip = "gzip" in request.headers.get("Accept-Encoding", "").lower()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
        if gzip:
            response.headers["Content-Encoding"] = "gzip"
        reader = _Reader(names, caller, request, gzip)
        reader.waiting.put_nowait(self._greeting(reader))
        self._readers.add(reader)
        if self._ticker is None or self._ticker.done():
            self._ticker = asyncio.create_task(self._tick_on())
        try:
            await response.prepare(request)
            await self._write_on(reader, response)
        except (TimeoutError, ConnectionError):
            pass  # the reader disconnected; it reconnects by itself
        finally:
            self._readers.discard(reader)
        return response

    async def close(self) -> None:
        """End all streams, so that shutdown need not wait for them."""
        self._closing = True
        for reader in self._readers:
            _end(reader)
        if self._ticker is not None:
            self._ticker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticker

    async def _write_on(self, reader: _Reader, response: web.StreamResponse) -> None:
        while not reader.has_ended:
            if body := await reader.waiting.get():
                async with asyncio.timeout(WRITE_DEADLINE_S):
                    await response.write(body)

    def _greeting(self, reader: _Reader) -> bytes:
        """Return the newest message of each topic; if no reader listened so far, the first tick brings it."""
        parts = [_Event(RETRY).body(gzip=reader.gzip)]
        for name in sorted(reader.topics):
            first = self._topics[name].first
            if first is None:
                event = self._newest.get(name)
            else:
                text = first()
                event = None if text is None else _Event(message_of(name, text))
            if event is not None:
                parts.append(event.body(gzip=reader.gzip))
        return (GZIP_HEADER if reader.gzip else b"") + b"".join(parts)

    async def _tick_on(self) -> None:
        loop = asyncio.get_running_loop()
        next_at_s = loop.time()
        while self._readers:
            self._tick()
            next_at_s = max(next_at_s + self._interval_s, loop.time())
            await asyncio.sleep(next_at_s - loop.time())
        self._newest.clear()

    def _tick(self) -> None:
        wanted = frozenset[str]().union(*(reader.topics for reader in self._readers))
        events = dict(self._made(wanted))
        for name in self._newest.keys() - wanted:
            del self._newest[name]
        bodies: dict[tuple[frozenset[str], bool], bytes] = {}  # of all readers of the same topics
        for reader in self._readers:
            if self._gate.caller(reader.request.headers) != reader.caller:
                _end(reader)  # its token was revoked or has expired
                continue
            key = (reader.topics, reader.gzip)
            if key not in bodies:
                bodies[key] = b"".join(
                    events[name].body(gzip=reader.gzip) for name in sorted(reader.topics) if name in events
                )
            self._queue(reader, bodies[key])

    def _made(self, names: frozenset[str]) -> Iterator[tuple[str, _Event]]:
        for name in names:
            try:
                text = self._topics[name].make()
            except Exception:  # one view that fails must not end the others
                log.exception("a topic of the stream failed", topic=name)
                continue
            if text is not None:
                event = _Event(message_of(name, text))
                if self._topics[name].first is None:
                    self._newest[name] = event
                yield name, event

    def _queue(self, reader: _Reader, body: bytes) -> None:
        reader.quiet_ticks = 0 if body else reader.quiet_ticks + 1
        if reader.quiet_ticks >= QUIET_TICKS_MAX:
            reader.quiet_ticks = 0
            body = _Event(BEAT).body(gzip=reader.gzip)
        if not body:
            return
        try:
            reader.waiting.put_nowait(body)
        except asyncio.QueueFull:
            _end(reader)


def _end(reader: _Reader) -> None:
    """End the stream after the current write; an empty body wakes a reader that has nothing else to write."""
    reader.has_ended = True
    with contextlib.suppress(asyncio.QueueFull):
        reader.waiting.put_nowait(b"")


def message_of(name: str, text: JsonText) -> bytes:
    """Encode one event (HTML Living Standard, section 9.2.6); line ends in JSON are white space only."""
    line = text.replace("\r", " ").replace("\n", " ")
    return f"event: {name}\ndata: {line}\n\n".encode()


def compressed(message: bytes) -> bytes:
    """Return whole deflate blocks that refer to nothing before them and end at a byte boundary."""
    compressor = zlib.compressobj(level=1, wbits=-zlib.MAX_WBITS)
    return compressor.compress(message) + compressor.flush(zlib.Z_SYNC_FLUSH)
