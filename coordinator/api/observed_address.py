"""Report to a machine how it is seen from outside: its address, its port on two connections, and whether it is reached.

The caller uses one port for three things: this request comes from it, so does a second connection, to a port of the
coordinator's choice, and the caller listens on it. Two different answers mean a router that maps a new port for each
conversation; a dial back to the first port shows whether that router admits strangers (AutoNAT and RFC 5780 in spirit,
all over TCP, as links are). The second port has the same address as the first, so routers that map by the remote
address alone are not distinguished.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import structlog
from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coordinator.api.invite_auth import check_invited, member_in
from coordinator.api.speed_test import Allowance, sends_nonce
from coordinator.core.traversal.rate_limit import Turns
from coordinator.http.requests import read_body
from coordinator.http.routes import Caller, RawRoute
from coordinator.join import JoinDesk
from rollcast.runtime.errors import MalformedMessage, WaitTimedOut
from rollcast.runtime.process import listening
from rollcast.wire.address_scope import plain_host

log = structlog.get_logger()

PATH = "/api/v1/speed/seen"
SECOND_DEADLINE_S = 3.0
MEMBERS_AT_ONCE = 16
MEMBERS_A_MINUTE = 600
"""These requests transfer nothing, so members do not slow each other; a fleet that joins at once takes a minute."""
ONE_AT_ONCE = 4
ONE_EVERY_S = 20.0
"""Seconds per member between requests; a member sends one when it joins or its network changes, and half-hourly."""
_ACCEPTED_AT_ONCE = 256  # connections to the second port, which strangers may open
_NONCE_LENGTH = 32
_BODY_BYTES_MAX = 1024
_CONTENT_TYPE = "application/x-ndjson"


class NonceQuery(BaseModel):
    """The nonce that the caller sends on its second connection, and to each machine that dials it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    nonce: str = Field(pattern=r"^[0-9a-f]{32}$")


class ObservedAddressRoutes:
    """Handler of the observed-address request.

    Args:
        host: interface on which second connections are accepted.
        port: port for them; 0: any free one each time.
    """

    def __init__(self, desk: JoinDesk, host: str, port: int = 0, allowance: Allowance | None = None) -> None:
        self._desk = desk
        self._second = _SecondPort(host, port)
        self._allowance = allowance or Allowance()
        self._members_allowance = Allowance(at_once=MEMBERS_AT_ONCE, a_minute=MEMBERS_A_MINUTE)
        self._turns = Turns(at_once=ONE_AT_ONCE, every_s=ONE_EVERY_S)

    def routes(self) -> list[RawRoute]:
        """Return the route; its handler checks invites and proofs of membership itself."""
        summary = "Report the caller's address and port as seen from two ports."
        return [RawRoute("POST", PATH, "anyone", self._seen, summary, _CONTENT_TYPE)]

    async def _seen(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        """Send two lines of JSON: {address, port, second_port}, then {second, reached} once all was tried."""
        allowance, member = self._members_allowance, member_in(self._desk, PATH, request.headers)
        if member is None:
            await check_invited(self._desk, caller, request.method, request.headers)
            allowance = self._allowance
        elif not self._turns.take(member, time.monotonic()):
            raise WaitTimedOut("this member requests its observed address too often", fix="it retries by itself")
        try:
            asked = NonceQuery.model_validate_json(await read_body(request, _BODY_BYTES_MAX))
        except ValidationError:
            raise MalformedMessage("the body is not {nonce}") from None
        address, port = caller_address(request)
        async with allowance.one(0), self._second.expected(asked.nonce) as expected:
            response = web.StreamResponse(headers={"Content-Type": _CONTENT_TYPE})
            await response.prepare(request)
            await response.write(_line({"address": address, "port": port, "second_port": expected.port}))
            second, reached = await asyncio.gather(expected.seen(), sends_nonce(address, port, asked.nonce))
            await response.write(_line({"second": second, "reached": reached}))
            await response.write_eof()
        return response


@dataclass(slots=True)
class _SecondConnection:
    """The state of one caller's second connection; port 0: the second port could not be opened."""

    port: int = 0
    caller: asyncio.Future[dict[str, Any]] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    async def seen(self) -> dict[str, Any] | None:
        """Return address and port of the first connection that sends the nonce; None if none does in time."""
        if not self.port:
            return None
        await asyncio.wait([self.caller], timeout=SECOND_DEADLINE_S)
        return self.caller.result() if self.caller.done() else None


class _SecondPort:
    """Accepts second connections while any is expected: one port for all callers, distinguished by their nonces."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._expected: dict[str, _SecondConnection] = {}
        self._server: asyncio.Server | None = None
        self._opening = asyncio.Lock()
        self._accepted = 0

    @asynccontextmanager
    async def expected(self, nonce: str) -> AsyncIterator[_SecondConnection]:
        """Wait for the connection that sends this nonce."""
        if nonce in self._expected:
            raise MalformedMessage("this nonce is in use; use a new one for each request")
        expected = self._expected[nonce] = _SecondConnection()
        try:
            expected.port = await self._opened()
            yield expected
        finally:
            del self._expected[nonce]
            if not self._expected and self._server is not None:
                self._server.close()
                self._server = None

    async def _opened(self) -> int:
        async with self._opening:
            if self._server is None:
                try:
                    self._server = await asyncio.start_server(
                        self._accept, **listening(self._host, self._port), limit=_BODY_BYTES_MAX
                    )
                except OSError as error:  # another process has it
                    log.info("no port for second connections", port=self._port, why=str(error))
                    return 0
            return int(self._server.sockets[0].getsockname()[1])

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._accepted >= _ACCEPTED_AT_ONCE:
            writer.close()
            return
        self._accepted += 1
        try:
            async with asyncio.timeout(SECOND_DEADLINE_S):
                nonce = await reader.readexactly(_NONCE_LENGTH)
            expected = self._expected.get(nonce.decode("ascii", "replace"))
            if expected is not None and not expected.caller.done():
                peer = writer.get_extra_info("peername")
                expected.caller.set_result({"address": plain_host(str(peer[0])), "port": peer[1]})
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass
        finally:
            self._accepted -= 1
            writer.close()


def caller_address(request: web.Request) -> tuple[str, int]:
    """Return the IP address, an IPv6-mapped IPv4 address as IPv4, and the port that a request comes from.

    Raises:
        MalformedMessage: its connection is closed.
    """
    peer = request.transport.get_extra_info("peername") if request.transport is not None else None
    if peer is None:
        raise MalformedMessage("the connection is closed")
    return plain_host(str(peer[0])), int(peer[1])


def _line(values: dict[str, Any]) -> bytes:
    return json.dumps(values).encode() + b"\n"
