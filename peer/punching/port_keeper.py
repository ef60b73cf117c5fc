"""Keep the port for hole punching mapped at the router, and know its outside address.

One connection from that port to the coordinator does both: the coordinator repeats the address that it sees, and the
traffic keeps the router's mapping alive (coordinator/api/address_stream.py).
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Callable
from typing import Any

import aiohttp

from peer.punching.port import PunchPort, address_in
from rollcast.runtime.errors import MalformedMessage, RollcastError, Unreachable
from rollcast.wire.address_scope import with_port
from rollcast.wire.joining.error_json import error_from_json
from rollcast.wire.joining.pinned_http import read_bounded

PATH = "/api/v1/reach/seen"
CONNECT_S = 10.0
SILENCE_S = 45.0
"""Seconds without a line, three times the coordinator's interval, after which the mapping may have expired."""
_LINE_BYTES_MAX = 256
_ERROR_BYTES_MAX = 4096
_NO_LINGER = struct.pack("ii", 1, 0)


async def watch(options: Callable[[str], dict[str, Any]], port: PunchPort, seen: Callable[[str], bool]) -> None:
    """Hold one connection to the coordinator until it ends.

    Args:
        options: returns the arguments of one aiohttp request of a path.
        seen: called with the ip:port of each line; it returns False to end the connection.

    Raises:
        Unreachable: the coordinator cannot be reached, or sends nothing for SILENCE_S.
        RollcastError: the coordinator refuses; an older release does not know the request.
    """

    def bound(_: Any) -> socket.socket:
        one = port.bound()
        # The next connection has the same two ends, so the closed one must not stay in TIME_WAIT.
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        return one

    connector = aiohttp.TCPConnector(family=port.family, socket_factory=bound, force_close=True)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
    try:
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=False) as session:
            async with asyncio.timeout(CONNECT_S + SILENCE_S):
                response = await session.get(**options(PATH), allow_redirects=False)
            async with response:
                await _check(response)
                while line := await _line(response):
                    if not seen(line):
                        return
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        cut = isinstance(error, aiohttp.ClientPayloadError)
        cause = "the connection broke" if cut else str(error) or "no answer in time"
        raise Unreachable("the coordinator does not report how it sees the port for holes", cause=cause) from None


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status != 200:
        error: RollcastError | None = error_from_json(await read_bounded(response, _ERROR_BYTES_MAX))
        raise error or Unreachable(f"the coordinator answers with HTTP status {response.status}")


async def _line(response: aiohttp.ClientResponse) -> str:
    """Return the ip:port of the next line; empty at the end of the answer."""
    async with asyncio.timeout(SILENCE_S):
        line = await response.content.readline()
    if not line:
        return ""
    try:
        told = json.loads(line) if len(line) <= _LINE_BYTES_MAX else None
        address = with_port(str(told["address"]), told["port"])  # type: ignore[index]
    except (ValueError, KeyError, TypeError):
        address = ""
    if address_in(address) is None:
        raise MalformedMessage("the coordinator's line does not hold the address of the port for holes")
    return address
