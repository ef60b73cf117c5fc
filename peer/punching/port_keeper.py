"""Keeping the port for holes mapped, and knowing how it is seen: one connection from it to the coordinator, which says
so again and again (coordinator/api/address_stream.py)."""

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
from rollcast.wire.joining.error_json import error_from_json
from rollcast.wire.joining.pinned_http import read_bounded

PATH = "/api/v1/reach/seen"
CONNECT_S = 10.0
SILENCE_S = 45.0
"""Three of the coordinator's lines: after that nobody knows whether the port is mapped still."""
_LINE_BYTES_MAX = 256
_ERROR_BYTES_MAX = 4096
_NO_LINGER = struct.pack("ii", 1, 0)


async def watch(options: Callable[[str], dict[str, Any]], port: PunchPort, seen: Callable[[str], bool]) -> None:
    """Hold one connection until it ends.

    Args:
        options: of one aiohttp request of this path.
        seen: told ip:port of each line; False: enough.

    Raises:
        Unreachable: the coordinator cannot be reached, or fell silent.
        RollcastError: what it answers instead; one of an older release knows nothing of this.
    """

    def bound(_: Any) -> socket.socket:
        one = port.bound()
        # The next connection has the same two ends: what we end must not stay in TIME_WAIT.
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        return one

    connector = aiohttp.TCPConnector(family=socket.AF_INET, socket_factory=bound, force_close=True)
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
        raise Unreachable("the coordinator does not say how the port for holes is seen", cause=cause) from None


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status != 200:
        error: RollcastError | None = error_from_json(await read_bounded(response, _ERROR_BYTES_MAX))
        raise error or Unreachable(f"the coordinator answers {response.status}")


async def _line(response: aiohttp.ClientResponse) -> str:
    """ip:port of the next line; empty at the end."""
    async with asyncio.timeout(SILENCE_S):
        line = await response.content.readline()
    if not line:
        return ""
    try:
        told = json.loads(line) if len(line) <= _LINE_BYTES_MAX else None
        address = f"{told['address']}:{told['port']}"  # type: ignore[index]
    except (ValueError, KeyError, TypeError):
        address = ""
    if address_in(address) is None:
        raise MalformedMessage("the coordinator does not say how the port for holes is seen")
    return address
