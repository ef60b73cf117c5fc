"""Test the listening port: its limits on clients, and the addresses on which it refuses to listen."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest

from coordinator.http import requests
from coordinator.http.server import HttpServer
from coordinator.http.tokens import TokenBook
from coordinator.stores.sqlite import Ledger
from rollcast.runtime.errors import PortInUse, UnsafeBind
from rollcast.wire.identity.tls import RunCA, TlsCredentials, new_tls_key
from rollcast.wire.ids import RunId
from rollcast.wire.limits import HTTP_JOIN_BYTES_MAX
from tests.coordinator.http.serving import KEY, FakeDesk, Given, served


async def test_an_oversized_body_is_refused_unread(tmp_path: Path) -> None:
    async with served(tmp_path) as page:
        reader, writer = await asyncio.open_connection("127.0.0.1", page.server.port)
        length = HTTP_JOIN_BYTES_MAX + 1
        writer.write(f"POST /api/v1/join HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n".encode())
        assert b"413" in await asyncio.wait_for(reader.readline(), 5)
        writer.close()
        await writer.wait_closed()

        async def endless() -> AsyncIterator[bytes]:
            for _ in range(2 * HTTP_JOIN_BYTES_MAX // 1024):
                yield b" " * 1024

        async with page.client.post(f"{page.url}/api/v1/join", data=endless()) as response:
            assert response.status == 413


async def test_dripped_headers_do_not_hold_a_connection(tmp_path: Path) -> None:
    async with served(tmp_path, header_deadline_s=0.3) as page:
        reader, writer = await asyncio.open_connection("127.0.0.1", page.server.port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: localh")
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()


async def test_a_dripped_body_does_not_hold_a_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "BODY_DEADLINE_S", 0.2)
    async with served(tmp_path) as page:
        reader, writer = await asyncio.open_connection("127.0.0.1", page.server.port)
        writer.write(b"POST /api/v1/join HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        assert b"408" in await asyncio.wait_for(reader.readline(), 5)
        await asyncio.wait_for(reader.read(), 5)
        writer.close()


async def test_idle_connections_make_room_for_newcomers(tmp_path: Path) -> None:
    async with served(tmp_path, idle_per_address=4) as page:
        silent = [await asyncio.open_connection("127.0.0.1", page.server.port) for _ in range(20)]
        async with page.client.get(f"{page.url}/health") as response:
            assert response.status == 200
        for reader, _ in silent[:16]:
            with suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 20) == b"", "the oldest ones are closed"
        for _, writer in silent:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


async def test_connections_above_the_cap_are_closed(tmp_path: Path) -> None:
    async with served(tmp_path, connections_max=1) as page:
        first_reader, first = await asyncio.open_connection("127.0.0.1", page.server.port)
        first.write(b"GET /api/v1/stream?topics=status HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200" in await first_reader.readline()  # the answer goes on: this connection is not idle
        reader, second = await asyncio.open_connection("127.0.0.1", page.server.port)
        second.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 5) == b""
        first.close()
        second.close()


async def test_beyond_loopback_only_with_tls_and_tokens(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "store.sqlite")
    tokens = TokenBook(ledger)
    closed = Given(open_reading=False, hosts=None).app(ledger, tokens, FakeDesk())
    with pytest.raises(UnsafeBind, match="without TLS"):
        await HttpServer.start(closed, host="0.0.0.0", port=0, tls=None)
    authority, key = RunCA.create(tmp_path, RunId("run-1")), new_tls_key()
    certificate = authority.issue_coordinator(key.csr_pem(), [])
    credentials = TlsCredentials(authority.certificate_pem, certificate, key.private_pem)
    tls = credentials.ssl_server_context(ask_client=False)
    opened = Given(open_reading=True, hosts=None).app(ledger, tokens, FakeDesk())
    with pytest.raises(UnsafeBind, match="without a token"):
        await HttpServer.start(opened, host="0.0.0.0", port=0, tls=tls)
    listening = await HttpServer.start(closed, host="0.0.0.0", port=0, tls=tls)
    trust = ssl.create_default_context(cadata=authority.certificate_pem.decode())
    url = f"https://localhost:{listening.port}"
    async with aiohttp.ClientSession() as client:
        for path, token, status in (
            ("/health", None, 200),
            ("/ready", None, 200),
            ("/api/v1/ca", None, 200),
            ("/", None, 200),
            ("/api/v1/status", None, 401),
            ("/metrics", None, 401),
            ("/api/v1/stream?topics=status", None, 401),
            ("/api/v1/status", "wrong", 401),
            ("/api/v1/status", KEY, 200),
            ("/metrics", KEY, 200),
        ):
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            async with client.get(url + path, ssl=trust, headers=headers) as response:
                assert response.status == status, path
                assert ("WWW-Authenticate" in response.headers) == (status == 401)
        with pytest.raises(aiohttp.ClientError):
            await client.get(f"http://localhost:{listening.port}/health")
    await listening.stop()
    await ledger.close()


async def test_malformed_http_does_not_fill_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with served(tmp_path) as page:
        for start in (
            b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n",
            b"\x16\x03\x01\x02\x00\r\n\r\n",
            b"X / HTTP/1.1\r\n\r\n",
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", page.server.port)
            writer.write(start)
            assert b"400" in await asyncio.wait_for(reader.readline(), 5)
            writer.close()
    assert not caplog.records


async def test_port_in_use_is_named(tmp_path: Path) -> None:
    async with served(tmp_path) as page:
        with pytest.raises(PortInUse, match=str(page.server.port)):
            await HttpServer.start(page.app, host="127.0.0.1", port=page.server.port, tls=None)
