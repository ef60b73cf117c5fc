"""How a machine is seen from outside, one that may join or a member: its address and port, the port twice, by whom.

The caller keeps one port for three things: this request comes from it, so does a second connection, to a port of our
choice, and the caller listens on it. Two answers that differ mean a router that draws a port for each conversation; a
dial back to the port seen first tells whether that router lets in who was not spoken to (AutoNAT and RFC 5780 in
spirit; all over TCP, as links are). The second port has the same address as the first, so what is told apart by the
remote address alone is not seen.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import structlog
from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coordinator.http.invited import check_invited, member_in
from coordinator.http.requests import read_body
from coordinator.http.routes import Caller, RawRoute
from coordinator.http.speed import Allowance, says_nonce
from coordinator.join import JoinDesk
from rollcast.runtime.errors import MalformedMessage

log = structlog.get_logger()

PATH = "/api/v1/speed/seen"
SECOND_DEADLINE_S = 3.0
_NONCE_LENGTH = 32
_BODY_BYTES_MAX = 1024
_CONTENT_TYPE = "application/x-ndjson"


class SeeMe(BaseModel):
    """What the caller says on its second connection, and to whoever dials it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    nonce: str = Field(pattern=r"^[0-9a-f]{32}$")


class Seeing:
    """The handler.

    Args:
        host: interface on which second connections are waited for.
        port: for them; 0: any free one each time.
    """

    def __init__(self, desk: JoinDesk, host: str, port: int = 0, allowance: Allowance | None = None) -> None:
        self._desk = desk
        self._host, self._port = host, port
        self._allowance = allowance or Allowance()

    def routes(self) -> list[RawRoute]:
        """For the application; it checks invites and proofs of membership itself."""
        summary = "Tell the caller how it is seen, from two ports."
        return [RawRoute("POST", PATH, "anyone", self._seen, summary, _CONTENT_TYPE)]

    async def _seen(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        """Two lines of JSON: {address, port, second_port}, and {second, reached} once all has been tried."""
        if member_in(self._desk, PATH, request.headers) is None:
            await check_invited(self._desk, caller, request.method, request.headers)
        try:
            asked = SeeMe.model_validate_json(await read_body(request, _BODY_BYTES_MAX))
        except ValidationError:
            raise MalformedMessage("this is not {nonce}") from None
        address, port = caller_address(request)
        async with self._allowance.one(0), _second_door(self._host, self._port, asked.nonce) as door:
            response = web.StreamResponse(headers={"Content-Type": _CONTENT_TYPE})
            await response.prepare(request)
            await response.write(_line({"address": address, "port": port, "second_port": door.port}))
            second, reached = await asyncio.gather(door.seen(), says_nonce(address, port, asked.nonce))
            await response.write(_line({"second": second, "reached": reached}))
            await response.write_eof()
        return response


@dataclass(slots=True)
class _Door:
    """Where second connections are waited for; port 0: nowhere, it could not be opened."""

    port: int = 0
    caller: asyncio.Future[dict[str, Any]] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    async def seen(self) -> dict[str, Any] | None:
        """Address and port of the first who says the nonce; None: nobody in time."""
        if not self.port:
            return None
        await asyncio.wait([self.caller], timeout=SECOND_DEADLINE_S)
        return self.caller.result() if self.caller.done() else None


@asynccontextmanager
async def _second_door(host: str, port: int, nonce: str) -> AsyncIterator[_Door]:
    door = _Door()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(SECOND_DEADLINE_S):
                said = await reader.readexactly(_NONCE_LENGTH)
            if said == nonce.encode() and not door.caller.done():
                peer = writer.get_extra_info("peername")
                door.caller.set_result({"address": peer[0], "port": peer[1]})
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    try:
        server = await asyncio.start_server(greet, host, port, limit=_BODY_BYTES_MAX)
    except OSError as error:  # another check has the port just now
        log.info("no port for a second look", port=port, why=str(error))
        yield door
        return
    async with server:
        door.port = int(server.sockets[0].getsockname()[1])
        yield door


def caller_address(request: web.Request) -> tuple[str, int]:
    """IP address and port that a request comes from.

    Raises:
        MalformedMessage: its connection is gone.
    """
    peer = request.transport.get_extra_info("peername") if request.transport is not None else None
    if peer is None:
        raise MalformedMessage("the connection is gone")
    return str(peer[0]), int(peer[1])


def _line(values: dict[str, Any]) -> bytes:
    return json.dumps(values).encode() + b"\n"
