"""Test byte ranges over HTTP, and the headers file."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from peer.mirrors.headers import MirrorHeaders
from peer.mirrors.http_ranges import Busy, HttpRanges, NotThere, shown, url_of
from rollcast.runtime.errors import ConfigError, MalformedMessage, RollcastError, Unreachable
from tests.peer.mirrors.mirror_server import HTTP_LIMITS, MirrorServer, mirror_server, raw_server

BYTES = bytes(range(256)) * 4


@asynccontextmanager
async def client(headers: MirrorHeaders | None = None) -> AsyncIterator[HttpRanges]:
    http = HttpRanges(headers or MirrorHeaders(), HTTP_LIMITS, connections_per_host=4)
    try:
        yield http
    finally:
        await http.close()


@asynccontextmanager
async def serving(tmp_path: Path) -> AsyncIterator[tuple[MirrorServer, HttpRanges]]:
    (tmp_path / "file").write_bytes(BYTES)
    async with mirror_server(tmp_path) as server, client() as http:
        yield server, http


async def part(http: HttpRanges, address: str, start: int, stop: int) -> bytes:
    return b"".join([piece async for piece in http.part(f"{address}/file", start, stop)])


async def test_a_range_and_a_whole_file(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, http):
        assert await part(http, server.address, 100, 300) == BYTES[100:300]
        assert await part(http, server.address, 0, len(BYTES)) == BYTES
        assert await http.whole(f"{server.address}/file", len(BYTES)) == BYTES
        await http.reach(server.address)
        assert server.headers[0]["Accept-Encoding"] == "identity"


async def test_a_range_beyond_the_end_is_not_there(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, http):
        for start, stop in ((1000, 1025), (5000, 5001)):
            with pytest.raises(NotThere, match="shorter"):
                await part(http, server.address, start, stop)
        with pytest.raises(NotThere, match="404"):
            await http.whole(f"{server.address}/none", 10)
        with pytest.raises(MalformedMessage, match="more than"):
            await http.whole(f"{server.address}/file", len(BYTES) - 1)


def answer_of(head: str, body: bytes = b"", status: str = "206 Partial Content") -> bytes:
    return f"HTTP/1.1 {status}\r\n{head}Connection: close\r\n\r\n".encode() + body


RANGE = "Content-Range: bytes 10-19/100\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        answer_of("Content-Length: 10\r\n", b"x" * 10),
        answer_of("Content-Range: bytes 0-9/100\r\nContent-Length: 10\r\n", b"x" * 10),
        answer_of("Content-Range: bytes 10-20/100\r\nContent-Length: 11\r\n", b"x" * 11),
        answer_of("Content-Range: bytes x\r\nContent-Length: 10\r\n", b"x" * 10),
        answer_of(RANGE + "Content-Length: 11\r\n", b"x" * 11),
        answer_of(RANGE + "Content-Length: 9\r\n", b"x" * 9),
        answer_of(RANGE + "Content-Encoding: gzip\r\nContent-Length: 10\r\n", b"x" * 10),
        answer_of("Location: file:///etc/passwd\r\n", status="302 Found"),
        answer_of("Location: http://example.com/x\r\n", status="302 Found"),
        answer_of("Location: https://user:pass@example.com/x\r\n", status="302 Found"),
        answer_of("Location: //[\r\n", status="302 Found"),
        answer_of("", status="302 Found"),
        answer_of("Location: /again\r\n", status="307 Temporary Redirect"),
    ],
)
async def test_a_hostile_answer_is_refused(answer: bytes) -> None:
    async def write(_request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)

    async with raw_server(write) as address, client() as http:
        with pytest.raises(MalformedMessage):
            await part(http, address, 10, 20)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 206 Partial Content\r\nX: " + b"x" * 100_000,
        answer_of(RANGE + "Content-Length: 10\r\n", b"x" * 5),
        answer_of(RANGE, b"x" * 5),
        answer_of("Content-Length: 0\r\n", status="500 Internal Server Error"),
        answer_of("Content-Length: 0\r\n", status="429 Too Many Requests"),
    ],
)
async def test_an_answer_that_breaks_off_may_be_retried(answer: bytes) -> None:
    async def write(_request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)

    async with raw_server(write) as address, client() as http:
        with pytest.raises(Busy):
            await part(http, address, 10, 20)


async def test_an_endless_answer_ends_where_the_range_does() -> None:
    sent = 0

    async def flood(request: bytes, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(
            answer_of(RANGE if b"Range" in request else "", status="206 x" if b"Range" in request else "200 OK")
        )
        while True:
            writer.write(b"x" * 65536)
            sent += 65536
            await writer.drain()

    async with raw_server(flood) as address, client() as http:
        assert await part(http, address, 10, 20) == b"x" * 10
        with pytest.raises(MalformedMessage, match="more than"):
            await http.whole(f"{address}/file", 1000)
    assert sent < 64 << 20


async def test_a_slow_drip_meets_its_deadline() -> None:
    async def drip(_request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(answer_of(RANGE))
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.04)

    async with raw_server(drip) as address, client() as http:
        with pytest.raises(Busy, match="slowly"):
            await part(http, address, 10, 20)


async def test_silence_meets_its_deadline() -> None:
    async def silent(_request: bytes, _writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    async with raw_server(silent) as address, client() as http:
        http._limits = type(HTTP_LIMITS)(connect_timeout_s=0.05, silence_timeout_s=0.05)
        with pytest.raises(Busy, match="in time"):
            await part(http, address, 10, 20)
        with pytest.raises(RollcastError):
            await http.reach(address)


async def test_time_without_a_read_does_not_count(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, http):
        (tmp_path / "file").write_bytes(b"x" * (1 << 20))
        pieces = http.part(f"{server.address}/file", 0, 1 << 20)
        size = len(await anext(pieces))
        await asyncio.sleep(HTTP_LIMITS.silence_timeout_s * 1.5)
        assert size + sum([len(piece) async for piece in pieces]) == 1 << 20


async def test_a_servers_retry_after_is_reported(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, http):
        for text, least, most in (
            ("7", 7, 7),
            ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0),
            ("x", 0, 0),
            ("9" * 99, 1e8, 1e10),
        ):

            async def later(_request: web.Request, text: str = text) -> web.Response:
                return web.Response(status=503, headers={"Retry-After": text})

            server.fault = later
            with pytest.raises(Busy, match="503") as caught:
                await part(http, server.address, 0, 10)
            assert least <= caught.value.wait_s <= most


async def test_a_server_without_ranges_serves_only_what_begins_a_file(tmp_path: Path) -> None:
    async def whole(_request: web.Request) -> web.Response:
        return web.Response(body=BYTES)

    async with serving(tmp_path) as (server, http):
        server.fault = whole
        assert await part(http, server.address, 0, 100) == BYTES[:100]
        with pytest.raises(NotThere, match="byte ranges"):
            await part(http, server.address, 1, 100)


async def test_redirects_on_loopback_are_followed_and_take_no_credentials_along(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, _):

        async def elsewhere(request: web.Request) -> web.Response | None:
            return (
                None
                if request.path.startswith("/www/")
                else web.Response(status=302, headers={"Location": "/www/file"})
            )

        server.fault = elsewhere
        base = server.address.removesuffix("/www") + "/private/"
        async with client(MirrorHeaders({base: {"Authorization": "s3cret"}})) as http:
            assert await http.whole(f"{base}file", 2000) == BYTES
        assert [headers.get("Authorization") for headers in server.headers] == ["s3cret", None]


async def test_a_server_that_is_down_is_reported_in_time() -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x?signature=s3cret"
    server.close()
    async with client() as http:
        with pytest.raises(Unreachable) as unreachable:
            await http.reach(address)
        with pytest.raises(Busy) as busy:
            await part(http, address, 0, 1)
    assert "s3cret" not in f"{unreachable.value}{busy.value}"


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_busy_server_is_unreachable(tmp_path: Path, status: int) -> None:
    async def write(_request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(answer_of("", status=f"{status} x"))

    async with raw_server(write) as address, client() as http:
        with pytest.raises(Unreachable):
            await http.reach(address)


def test_a_file_of_a_mirror_keeps_the_query_of_its_prefix() -> None:
    assert str(url_of("https://a/b/", "1", "0.data")) == "https://a/b/1/0.data"
    assert str(url_of("https://a/b?sig=%2F%3d", "1", "0.data")) == "https://a/b/1/0.data?sig=%2F%3d"
    assert str(url_of("http://[::1]:81/b")) == "http://[::1]:81/b"


@pytest.mark.parametrize(
    "address",
    ["http://example.com/x", "file:///etc/passwd", "ftp://a/b", "https://", "https://u:p@a/b", "a:1", "http://[", ""],
)
def test_an_invalid_address_is_refused_without_showing_its_secrets(address: str) -> None:
    with pytest.raises(Unreachable) as caught:
        url_of(f"{address}?s3cret")
    assert "s3cret" not in str(caught.value)
    assert "u:p@" not in str(caught.value)


def test_a_shown_address_has_no_secrets() -> None:
    assert shown("https://u:p@a.example/b/c?x=1#y") == "https://a.example/b/c"


async def _sent_ahead(most: int | None) -> int:
    """Return the bytes that a server can send while its client does not read."""
    sent = 0

    async def pour(_request: bytes, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 << 10)
        writer.write(answer_of(f"Content-Range: bytes 0-{(64 << 20) - 1}/{64 << 20}\r\nContent-Length: {64 << 20}\r\n"))
        while True:
            writer.write(bytes(32 << 10))
            await writer.drain()
            sent += 32 << 10

    http = HttpRanges(MirrorHeaders(), HTTP_LIMITS, connections_per_host=1, receive_bytes=lambda _address: most)
    async with raw_server(pour) as address:
        pieces = http.part(f"{address}/file", 0, 64 << 20)
        for _ in range(8):  # so that the kernel sees a reader, and takes more
            await anext(pieces)
        before = -1
        while sent != before:
            before = sent
            await asyncio.sleep(0.2)
        await pieces.aclose()
    await http.close()
    return sent


async def test_a_server_cannot_send_far_ahead_of_a_cap() -> None:
    assert await _sent_ahead(64 << 10) < await _sent_ahead(None)


FILE = """
["https://a.example/run/"]
Authorization = "Bearer s3cret"
["https://a.example/run/special/"]
X-Key = "1"
"""


def read(tmp_path: Path, text: str) -> MirrorHeaders:
    path = tmp_path / "headers.toml"
    path.write_text(text)
    return MirrorHeaders.read(path)


def test_the_longest_prefix_that_fits_gives_the_headers(tmp_path: Path) -> None:
    headers = read(tmp_path, FILE)
    assert headers.of("https://a.example/run/7/0.data") == {"Authorization": "Bearer s3cret"}
    assert headers.of("https://a.example/run/special/7/0.data") == {"X-Key": "1"}
    for other in ("https://a.example/", "https://a.example.evil/run/x", "http://a.example/run/x", "https://b/run/x"):
        assert headers.of(other) == {}
    assert "s3cret" not in repr(headers)


@pytest.mark.parametrize(
    "text",
    [
        '["https://a.example"]\nA = "s3cret"',
        '["https://a.example/run"]\nA = "s3cret"',
        '["ftp://a.example/"]\nA = "s3cret"',
        '["https://a.example/"]\nA = 5',
        '["https://a.example/"]\nA = "s3cret\\r\\nB: c"',
        '["https://a.example/"]\n"A b" = "s3cret"',
        '["https://a.example/"]\nRange = "s3cret"',
        '"https://a.example/" = "s3cret"',
        "s3cret",
    ],
)
def test_a_file_of_another_form_is_refused_without_showing_it(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert "s3cret" not in str(caught.value)


def test_a_file_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        MirrorHeaders.read(tmp_path / "no.toml")
