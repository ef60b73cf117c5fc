"""Ask the coordinator how it sees a port of this machine; coordinator/api/observed_address.py is the other end."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import time
from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import urlsplit

import aiohttp

from peer.reachability.link_speed import check_answer
from peer.reachability.nat_kind import Seen
from rollcast.runtime.errors import MalformedMessage, Unreachable
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.member_proof import member_proof
from rollcast.wire.joining.enrol import Enrolment
from rollcast.wire.joining.pinned_http import NotReady, pinned_options

_NONCE_BYTES = 16
_DEADLINE_S = 15.0
_SECOND_DEADLINE_S = 2.0
_LINE_BYTES_MAX = 1024
_PATH = "/api/v1/speed/seen"


class CoordinatorHttp(Protocol):
    """Authorised requests to the coordinator's HTTP port.

    They are made with an invite (peer.reachability.link_speed.InviteHttp) or as a member of the run (MemberHttp).
    """

    def options(self, path: str) -> dict[str, Any]:
        """Return the arguments of one aiohttp request of this path."""


class MemberHttp:
    """Authorise requests as a member of the run; no invite is needed.

    Args:
        http_url: returns the coordinator's address where it was found last; None: that of the enrolment.
    """

    def __init__(
        self,
        identity: Identity,
        enrolment: Enrolment,
        wall_clock: Callable[[], float] = time.time,
        http_url: Callable[[], str] | None = None,
    ) -> None:
        self._identity, self._enrolment, self._wall_clock = identity, enrolment, wall_clock
        self._http_url = http_url or (lambda: enrolment.http_url)

    def options(self, path: str) -> dict[str, Any]:
        """Return the arguments of one aiohttp request of this path; the proof in them is valid for a short time."""
        proof = member_proof(self._identity, self._enrolment.run_id, path, self._wall_clock())
        options = pinned_options(f"{self._http_url()}{path}", self._enrolment.credentials.ca_pem)
        return {**options, "headers": proof}


async def seen_from_outside(door: CoordinatorHttp) -> Seen:
    """Return how the coordinator sees one port of this machine.

    One local port listens, sends the request, and dials the coordinator's second port: comparing what the coordinator
    sees of the three tells the kind of NAT. Over IPv4, which routers translate, unless the coordinator's address is one
    of IPv6.

    Raises:
        Unreachable: the coordinator does not answer in time.
        RollcastError: the coordinator refuses; an older release does not know the request.
    """
    nonce = secrets.token_hex(_NONCE_BYTES)

    async def say(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(nonce.encode())
        writer.close()

    family = socket.AF_INET6 if ":" in (urlsplit(door.options(_PATH)["url"]).hostname or "") else socket.AF_INET
    listening = _bound(family, 0)
    port = int(listening.getsockname()[1])
    try:
        async with asyncio.timeout(_DEADLINE_S), await asyncio.start_server(say, sock=listening):
            return await _ask(door, family, port, nonce)
    except (NotReady, aiohttp.ClientError, OSError, TimeoutError) as error:
        raise Unreachable("the coordinator does not report how it sees this machine", cause=str(error)) from None


async def _ask(door: CoordinatorHttp, family: socket.AddressFamily, port: int, nonce: str) -> Seen:
    connector = aiohttp.TCPConnector(family=family, socket_factory=lambda _: _bound(family, port))
    async with (
        aiohttp.ClientSession(connector=connector, trust_env=False) as session,
        session.post(**door.options(_PATH), json={"nonce": nonce}, allow_redirects=False) as response,
    ):
        await check_answer(response)
        transport = response.connection.transport if response.connection is not None else None
        if transport is None:
            raise OSError("the connection is gone")
        local, remote = transport.get_extra_info("sockname")[0], transport.get_extra_info("peername")[0]
        try:
            first = await _line(response)
            if second_port := int(first["second_port"]):
                await _dial_second(_bound(family, port), (remote, second_port), nonce)
            second = await _line(response)
            again = second["second"]
            seen_port = None if again is None else int(again["port"])
            return Seen(str(local), str(first["address"]), int(first["port"]), seen_port, second["reached"] is True)
        except (KeyError, TypeError, ValueError):
            raise MalformedMessage("the coordinator's answer does not report how it sees this machine") from None


async def _dial_second(dialling: socket.socket, remote: tuple[str, int], nonce: str) -> None:
    """Dial the coordinator's second port from the same local port; the coordinator reports whether that worked."""
    dialling.setblocking(False)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_SECOND_DEADLINE_S):
            await loop.sock_connect(dialling, remote)
            await loop.sock_sendall(dialling, nonce.encode())
            await loop.sock_recv(dialling, 1)  # the coordinator closes the connection once it has read the nonce
    except (OSError, TimeoutError):
        pass
    finally:
        dialling.close()


def _bound(family: socket.AddressFamily, port: int) -> socket.socket:
    """Return a socket bound to a port that other sockets share: a router sees the same port for all of them."""
    one = socket.socket(family, socket.SOCK_STREAM)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    one.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", port))
    return one


async def _line(response: aiohttp.ClientResponse) -> dict[str, Any]:
    line = await response.content.readline()
    found = json.loads(line) if len(line) <= _LINE_BYTES_MAX else None
    if not isinstance(found, dict):
        raise ValueError
    return found
