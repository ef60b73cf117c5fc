"""Asking the coordinator how a port of this machine is seen: coordinator/api/observed_address.py is the other end."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from typing import Any, Protocol

import aiohttp

from peer.reachability.link_speed import check_answer
from peer.reachability.nat_kind import Seen
from rollcast.runtime.errors import MalformedMessage, Unreachable
from rollcast.wire.joining.pinned_http import NotReady

_NONCE_BYTES = 16
_DEADLINE_S = 15.0
_SECOND_DEADLINE_S = 2.0
_LINE_BYTES_MAX = 1024
_ANY = "0.0.0.0"


class CoordinatorHttp(Protocol):
    """The coordinator's, opened with an invite (peer.reachability.link_speed) or as a member (peer.reachability)."""

    def options(self, path: str) -> dict[str, Any]: ...


async def seen_from_outside(door: CoordinatorHttp) -> Seen:
    """One port that listens, asks, and dials the coordinator's second port; IPv4, which is what routers translate.

    Raises:
        Unreachable: the coordinator does not answer in time.
        RollcastError: what it answers instead; one of an older release knows nothing of this.
    """
    nonce = secrets.token_hex(_NONCE_BYTES)

    async def say(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(nonce.encode())
        writer.close()

    listening = _bound(0)
    port = int(listening.getsockname()[1])
    try:
        async with asyncio.timeout(_DEADLINE_S), await asyncio.start_server(say, sock=listening):
            return await _ask(door, port, nonce)
    except (NotReady, aiohttp.ClientError, OSError, TimeoutError) as error:
        raise Unreachable("the coordinator does not say how this machine is seen", cause=str(error)) from None


async def _ask(door: CoordinatorHttp, port: int, nonce: str) -> Seen:
    connector = aiohttp.TCPConnector(family=socket.AF_INET, socket_factory=lambda _: _bound(port))
    async with (
        aiohttp.ClientSession(connector=connector, trust_env=False) as session,
        session.post(**door.options("/api/v1/speed/seen"), json={"nonce": nonce}, allow_redirects=False) as response,
    ):
        await check_answer(response)
        transport = response.connection.transport if response.connection is not None else None
        if transport is None:
            raise OSError("the connection is gone")
        local, remote = transport.get_extra_info("sockname")[0], transport.get_extra_info("peername")[0]
        try:
            first = await _line(response)
            await _dial_second(port, (remote, int(first["second_port"])), nonce)
            second = await _line(response)
            again = second["second"]
            second_port = None if again is None else int(again["port"])
            return Seen(str(local), str(first["address"]), int(first["port"]), second_port, second["reached"] is True)
        except (KeyError, TypeError, ValueError):
            raise MalformedMessage("the coordinator's answer does not say how this machine is seen") from None


async def _dial_second(port: int, remote: tuple[str, int], nonce: str) -> None:
    """Show ourselves there as well; whoever cannot be reached sees nothing, which the coordinator then says."""
    if not remote[1]:
        return
    dialling = _bound(port)
    dialling.setblocking(False)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_SECOND_DEADLINE_S):
            await loop.sock_connect(dialling, remote)
            await loop.sock_sendall(dialling, nonce.encode())
            await loop.sock_recv(dialling, 1)  # it closes when it has read
    except (OSError, TimeoutError):
        pass
    finally:
        dialling.close()


def _bound(port: int) -> socket.socket:
    """Several sockets with one local port: what a router sees of all of them is the same port."""
    one = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    one.bind((_ANY, port))
    return one


async def _line(response: aiohttp.ClientResponse) -> dict[str, Any]:
    line = await response.content.readline()
    found = json.loads(line) if len(line) <= _LINE_BYTES_MAX else None
    if not isinstance(found, dict):
        raise ValueError
    return found
