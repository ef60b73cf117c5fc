"""Report to members the address and port under which they are seen, for as long as they keep the request open.

A member asks from the port that it punches holes from. The response stays open: it keeps that port mapped at routers on
the way (RFC 5382 section 5 lets them drop a connection that is silent for long), and its end tells the member that its
address is no longer valid.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from ipaddress import ip_address

from aiohttp import web

from coordinator.api.invite_auth import member_in
from coordinator.api.observed_address import caller_address
from coordinator.http.routes import Caller, RawRoute
from coordinator.join import JoinDesk
from rollcast.runtime.errors import JoinRefused, WaitTimedOut
from rollcast.wire.ids import PeerId
from rollcast.wire.links.raw_tls import shrink

PATH = "/api/v1/reach/seen"
INTERVAL_S = 15.0
"""Seconds between two lines; the worst routers drop a silent connection within minutes."""
WATCHED_MOST = 2048  # connections at once; further ones are refused and retry
WRITE_DEADLINE_S = 10.0
_CONTENT_TYPE = "application/x-ndjson"


class AddressStream:
    """Handles the address stream; each member has at most one open connection over IPv4 and one over IPv6."""

    def __init__(
        self,
        desk: JoinDesk,
        *,
        seen: Callable[[PeerId, str], None] = lambda peer_id, host: None,
        interval_s: float = INTERVAL_S,
        most: int = WATCHED_MOST,
    ) -> None:
        """``seen`` is called with the member and the IP address that it watches from."""
        self._desk = desk
        self._seen = seen
        self._interval_s, self._most = interval_s, most
        self._over: dict[tuple[PeerId, int], asyncio.Event] = {}  # by member and version of IP
        self._closing = False

    @property
    def open_connections(self) -> int:
        """Return the number of open connections."""
        return len(self._over)

    def routes(self) -> list[RawRoute]:
        """Return the route; its handler checks the proof of membership itself."""
        summary = "Report a member's observed address every few seconds."
        return [RawRoute("GET", PATH, "anyone", self._serve, summary, _CONTENT_TYPE)]

    def end(self) -> None:
        """End all connections, so that shutdown need not wait for them."""
        self._closing = True
        for over in self._over.values():
            over.set()

    async def _serve(self, request: web.Request, _caller: Caller) -> web.StreamResponse:
        """Send lines of JSON, {address, port}, until the member disconnects or asks anew."""
        peer_id = member_in(self._desk, PATH, request.headers)
        if peer_id is None:
            raise JoinRefused("only members of the run may request their observed address")
        address, port = caller_address(request)
        key = peer_id, ip_address(address).version
        if self._closing or (key not in self._over and len(self._over) >= self._most):
            raise WaitTimedOut("too many members watch their address", fix="the member retries by itself")
        self._seen(peer_id, address)
        line = json.dumps({"address": address, "port": port}).encode() + b"\n"
        over = asyncio.Event()
        if key in self._over:
            self._over[key].set()  # ends its previous connection, which it may have lost
        self._over[key] = over
        response = web.StreamResponse(headers={"Content-Type": _CONTENT_TYPE})
        try:
            await response.prepare(request)
            if request.transport is not None:
                shrink(request.transport)  # every member has one: small socket buffers save memory
            while not over.is_set() and self._desk.has_session(peer_id):
                async with asyncio.timeout(WRITE_DEADLINE_S):
                    await response.write(line)
                await _wait(over, self._interval_s)
        except (TimeoutError, ConnectionError):
            pass  # the member disconnected
        finally:
            if self._over.get(key) is over:
                del self._over[key]
        return response


async def _wait(over: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await over.wait()
    except TimeoutError:
        pass
