"""Test HTTP over a connection that was opened elsewhere; tests/peer/punching tests its use."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import aiohttp
import pytest

from rollcast.wire.joining.preconnected import ConnectedSockets
from tests.peer.links.link_run import LinkRun


async def test_a_connection_is_used_once_and_nothing_is_dialled(tmp_path: Path) -> None:
    run = LinkRun(tmp_path)
    _, credentials = run.member("peer")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=credentials.ssl_server_context()) as server:
        connector = ConnectedSockets()
        async with aiohttp.ClientSession(connector=connector) as session:
            sock = socket.create_connection(server.sockets[0].getsockname())
            sock.setblocking(False)
            address = connector.add(sock)
            context = credentials.ssl_client_context()
            async with session.get(f"https://{address}/", ssl=context) as response:
                assert await response.text() == "hi"
            with pytest.raises(aiohttp.ClientConnectionError, match="no connection"):
                await session.get(f"https://{address}/", ssl=context)


async def test_a_dropped_socket_is_closed() -> None:
    async with await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0) as server:
        connector = ConnectedSockets()
        sock = socket.create_connection(server.sockets[0].getsockname())
        connector.drop(connector.add(sock))
        assert sock.fileno() < 0
        await connector.close()


async def test_an_end_that_speaks_no_tls_is_an_error(tmp_path: Path) -> None:
    _, credentials = LinkRun(tmp_path).member("peer")

    async def nonsense(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-nonsense\r\n")
        writer.close()

    async with await asyncio.start_server(nonsense, "127.0.0.1", 0) as server:
        connector = ConnectedSockets()
        async with aiohttp.ClientSession(connector=connector) as session:
            sock = socket.create_connection(server.sockets[0].getsockname())
            sock.setblocking(False)
            with pytest.raises(aiohttp.ClientError):
                await session.get(f"https://{connector.add(sock)}/", ssl=credentials.ssl_client_context())
