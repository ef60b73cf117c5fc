"""The HTTP side by itself: what it answers, to whom, and what it does not put up with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import aiohttp
import pytest

from coordinator.http import server as http_server
from coordinator.http.server import HttpApi, HttpServer, HttpViews
from coordinator.join import JoinDesk, JoinReply
from rollcast.runtime.errors import JoinRefused, PortInUse, ProtocolMismatch, StoreError, UnsafeBind
from rollcast.wire.ids import RunId
from rollcast.wire.limits import HTTP_JOIN_BYTES_MAX
from rollcast.wire.tls import RunCA, TlsCredentials, new_tls_key
from tests.coordinator.sample_status import sample_broadcast, sample_status

LOCAL = frozenset({"127.0.0.1", "localhost"})


class FakeDesk:
    """Answers joins as told."""

    ca_pem = b"-----BEGIN CERTIFICATE-----\n"

    def __init__(self) -> None:
        self.answer: JoinReply | Exception = JoinReply("pem", "run-1", "12D3KooW", "127.0.0.1:7400")

    async def join(self, body: bytes) -> JoinReply:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Page:
    """A served API and a client of it."""

    def __init__(self, server: HttpServer, client: aiohttp.ClientSession, desk: FakeDesk) -> None:
        self.server, self.client, self.desk = server, client, desk
        self.url = f"http://127.0.0.1:{server.port}"


@asynccontextmanager
async def served(*, not_ready: str = "", status: dict[str, Any] | None = None, **options: Any) -> AsyncIterator[Page]:
    desk = FakeDesk()
    views = HttpViews(
        lambda: status or sample_status(), sample_broadcast, lambda: not_ready, lambda: b"rollcast_learner_step 87.0\n"
    )
    api = HttpApi(views, cast(JoinDesk, desk), hosts=LOCAL)
    server = await HttpServer.start(api, host="127.0.0.1", port=0, tls=None, **options)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as client:
        yield Page(server, client, desk)
    await server.stop()


async def test_health_ready_metrics_and_status() -> None:
    async with served(not_ready="the run is over", status=sample_status(reward_train=float("nan"))) as page:
        async with page.client.get(f"{page.url}/health") as response:
            assert (response.status, await response.json()) == (200, {"status": "ok"})
        async with page.client.get(f"{page.url}/ready") as response:
            assert (response.status, await response.json()) == (503, {"ready": False, "reason": "the run is over"})
        async with page.client.get(f"{page.url}/metrics") as response:
            assert response.content_type == "text/plain"
            assert await response.text() == "rollcast_learner_step 87.0\n"
        async with page.client.get(f"{page.url}/api/v1/status") as response:
            status = await response.json()
            assert (status["step"], status["reward_train"]) == (87, None)
        async with page.client.get(f"{page.url}/api/v1/broadcast") as response:
            assert (await response.json())["peers_holding"] == {"have": 7, "total": 8}
        async with page.client.get(f"{page.url}/api/v1/ca") as response:
            assert (await response.json())["ca_pem"].startswith("-----BEGIN CERTIFICATE")


@pytest.mark.parametrize("path", ["/", "/app.js", "/app.css", "/icon.svg"])
async def test_the_page_forbids_everything_foreign(path: str) -> None:
    async with served() as page, page.client.get(page.url + path) as response:
        assert response.status == 200
        policy = response.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        text = await response.text()
        assert "http://" not in text.replace("http://www.w3.org", "")
        assert "https://" not in text
        assert "<script>" not in text
        assert "style=" not in text


async def test_the_stream_repeats_the_status_and_ends_with_the_server() -> None:
    async with served() as page, page.client.get(f"{page.url}/api/v1/status/stream") as response:
        assert response.content_type == "text/event-stream"
        for _ in range(2):
            line = b""
            while not line.startswith(b"data: "):
                line = await response.content.readline()
            assert json.loads(line[6:])["step"] == 87
        stopping = asyncio.create_task(page.server.stop())
        await response.content.read()
        await stopping


async def test_streams_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "STREAMS_MAX", 1)
    async with served() as page, page.client.get(f"{page.url}/api/v1/status/stream") as first:
        await first.content.readline()
        async with page.client.get(f"{page.url}/api/v1/status/stream") as second:
            assert second.status == 503


@pytest.mark.parametrize("host", ["evil.example", "evil.example:7401", "127.0.0.1.evil.example", "[::2]:7401", ""])
async def test_other_names_are_not_answered(host: str) -> None:
    async with served() as page, page.client.get(f"{page.url}/health", headers={"Host": host}) as response:
        assert response.status == 421


async def test_a_join_gets_its_certificate() -> None:
    async with served() as page, page.client.post(f"{page.url}/api/v1/join", json={}) as response:
        assert response.status == 200
        assert (await response.json())["peer_id"] == "12D3KooW"


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (JoinRefused("the invite has expired", fix="ask for another"), 403, "RC301"),
        (ProtocolMismatch("no common protocol"), 403, "RC204"),
        (StoreError("the disk is full"), 503, "RC401"),
    ],
)
async def test_a_refused_join_says_why(error: Exception, status: int, code: str) -> None:
    async with served() as page:
        page.desk.answer = error
        async with page.client.post(f"{page.url}/api/v1/join", json={}) as response:
            body = await response.json()
            assert (response.status, body["code"], body["what"]) == (status, code, error.args[0])


async def test_an_oversized_body_is_refused_unread() -> None:
    async with served() as page:
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


async def test_dripped_headers_do_not_hold_a_connection() -> None:
    async with served(header_deadline_s=0.3) as page:
        reader, writer = await asyncio.open_connection("127.0.0.1", page.server.port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: localh")
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()


async def test_a_dripped_body_does_not_hold_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "BODY_DEADLINE_S", 0.2)
    async with served() as page:
        reader, writer = await asyncio.open_connection("127.0.0.1", page.server.port)
        writer.write(b"POST /api/v1/join HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        assert b"408" in await asyncio.wait_for(reader.readline(), 5)
        await asyncio.wait_for(reader.read(), 5)
        writer.close()


async def test_connections_above_the_cap_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "CONNECTIONS_MAX", 1)
    async with served() as page:
        first_reader, first = await asyncio.open_connection("127.0.0.1", page.server.port)
        first.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200" in await first_reader.readline()
        reader, second = await asyncio.open_connection("127.0.0.1", page.server.port)
        second.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 5) == b""
        first.close()
        second.close()


async def test_beyond_loopback_only_with_tls(tmp_path: Any) -> None:
    views = HttpViews(sample_status, sample_broadcast, str, bytes)
    api = HttpApi(views, cast(JoinDesk, FakeDesk()), hosts=None)
    with pytest.raises(UnsafeBind):
        await HttpServer.start(api, host="0.0.0.0", port=0, tls=None)
    authority, key = RunCA.create(tmp_path, RunId("run-1")), new_tls_key()
    certificate = authority.issue_coordinator(key.csr_pem(), [])
    credentials = TlsCredentials(authority.certificate_pem, certificate, key.private_pem)
    tls = credentials.ssl_server_context(ask_client=False)
    server = await HttpServer.start(api, host="0.0.0.0", port=0, tls=tls)
    trust = http_server.ssl.create_default_context(cadata=authority.certificate_pem.decode())
    async with aiohttp.ClientSession() as client:
        async with client.get(f"https://localhost:{server.port}/health", ssl=trust) as response:
            assert response.status == 200
        with pytest.raises(aiohttp.ClientError):
            await client.get(f"http://localhost:{server.port}/health")
    await server.stop()


async def test_a_taken_port_is_named() -> None:
    async with served() as page:
        api = HttpApi(HttpViews(sample_status, sample_broadcast, str, bytes), cast(JoinDesk, FakeDesk()), hosts=LOCAL)
        with pytest.raises(PortInUse, match=str(page.server.port)):
            await HttpServer.start(api, host="127.0.0.1", port=page.server.port, tls=None)
