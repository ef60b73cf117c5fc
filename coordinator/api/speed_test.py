"""Let a machine that may join measure its link: bytes down, bytes up, and whether others can reach it.

Each measurement costs the coordinator bandwidth, so few are served at once and per minute. Received bytes are counted
and discarded; sent bytes are noise, which no proxy on the way can compress.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coordinator.api.invite_auth import check_invited
from coordinator.http.requests import read_body
from coordinator.http.routes import Caller, RawRoute
from coordinator.join import JoinDesk
from rollcast.runtime.errors import MalformedMessage, WaitTimedOut

BYTES_MAX = 32 << 20
BYTES_A_MINUTE = 512 << 20
AT_ONCE = 2
A_MINUTE = 60
TRANSFER_DEADLINE_S = 30.0
DIAL_DEADLINE_S = 3.0
_PIECE_BYTES = 256 << 10
_MINUTE_S = 60.0


class Allowance:
    """Limits how much is served: measurements at once, measurements per minute, and bytes per minute."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, *, at_once: int = AT_ONCE, a_minute: int = A_MINUTE
    ) -> None:
        self._clock = clock
        self._at_once, self._a_minute = at_once, a_minute
        self._running = 0
        self._served: deque[tuple[float, int]] = deque()

    @asynccontextmanager
    async def one(self, size_bytes: int) -> AsyncIterator[None]:
        """Serve one measurement of ``size_bytes`` while the body runs.

        Raises:
            WaitTimedOut: a limit is reached.
        """
        now = self._clock()
        while self._served and now - self._served[0][0] >= _MINUTE_S:
            self._served.popleft()
        spent = sum(size for _, size in self._served)
        if self._running >= self._at_once or len(self._served) >= self._a_minute or spent + size_bytes > BYTES_A_MINUTE:
            raise WaitTimedOut("other machines are measuring their links", fix="retry in a minute")
        self._served.append((now, size_bytes))
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1


class DialBack(BaseModel):
    """The caller's port, and the nonce that it sends to the dialler: no caller can probe another's port."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    port: int = Field(ge=1024, le=65535)
    nonce: str = Field(pattern=r"^[0-9a-f]{32}$")


class Speed:
    """Handlers of the speed test."""

    def __init__(self, desk: JoinDesk, allowance: Allowance | None = None) -> None:
        self._desk = desk
        self._allowance = allowance or Allowance()
        self._noise = os.urandom(_PIECE_BYTES)

    def routes(self) -> list[RawRoute]:
        """Return the routes; each handler checks the invite itself."""
        stream = "application/octet-stream"
        return [
            RawRoute("GET", "/api/v1/speed/down", "anyone", self._down, "Send ?bytes=N of noise.", stream),
            RawRoute("POST", "/api/v1/speed/up", "anyone", self._up, "Count the bytes of the body."),
            RawRoute("POST", "/api/v1/speed/dial", "anyone", self._dial, "Dial the caller back."),
        ]

    async def _down(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        await check_invited(self._desk, caller, request.method, request.headers)
        asked = request.query.get("bytes", "")
        if not asked.isdecimal() or len(asked) > 12 or not 0 < int(asked) <= BYTES_MAX:
            raise MalformedMessage(f"?bytes= must be from 1 to {BYTES_MAX}")
        left = int(asked)
        try:
            async with self._allowance.one(left):
                response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
                response.content_length = left
                async with asyncio.timeout(TRANSFER_DEADLINE_S):
                    await response.prepare(request)
                    while left:
                        piece = self._noise[: min(left, _PIECE_BYTES)]
                        await response.write(piece)
                        left -= len(piece)
                    await response.write_eof()
                return response
        except TimeoutError:  # what was sent is what there is to measure
            return _cut(request)

    async def _up(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        await check_invited(self._desk, caller, request.method, request.headers)
        if (request.content_length or 0) > BYTES_MAX:
            raise web.HTTPRequestEntityTooLarge(BYTES_MAX, request.content_length or 0)
        counted, started_s = 0, time.monotonic()
        try:
            async with self._allowance.one(request.content_length or BYTES_MAX), asyncio.timeout(TRANSFER_DEADLINE_S):
                async for piece in request.content.iter_any():
                    counted += len(piece)
                    if counted > BYTES_MAX:
                        raise web.HTTPRequestEntityTooLarge(BYTES_MAX, counted)
        except TimeoutError:
            pass
        return web.json_response({"bytes": counted, "seconds": time.monotonic() - started_s})

    async def _dial(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        """Dial the caller's own address only, and report nothing about a port that does not send the nonce."""
        await check_invited(self._desk, caller, request.method, request.headers)
        try:
            asked = DialBack.model_validate_json(await read_body(request, 1024))
        except ValidationError:
            raise MalformedMessage("the body is not {port, nonce}") from None
        address = request.remote or ""
        async with self._allowance.one(0):
            reached = await sends_nonce(address, asked.port, asked.nonce)
        return web.json_response({"address": address, "reached": reached})


async def sends_nonce(host: str, port: int, nonce: str) -> bool:
    """Decide whether the listener there sends this nonce first; nothing is sent to it."""
    writer = None
    try:
        async with asyncio.timeout(DIAL_DEADLINE_S):
            reader, writer = await asyncio.open_connection(host, port, limit=1024)
            return await reader.readexactly(len(nonce)) == nonce.encode()
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return False
    finally:
        if writer is not None:
            writer.close()


def _cut(request: web.Request) -> web.StreamResponse:
    """Abort the connection of a response that took too long."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()
