"""Test the checks that every request passes: host names, headers, bodies, errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from coordinator.http.routes import Answer, Body, Call, JsonText, Query, Route
from tests.coordinator.http.serving import KEY, Given, served


class Asked(Query):
    """The query of the test's route."""

    limit: int = 5


class Posted(Body):
    """The body of the test's route."""

    number: float


async def echo(call: Call) -> Answer:
    return {"who": call.caller.who, "params": dict(call.params), "query": call.query and call.query.model_dump()}


async def model(call: Call) -> Answer:
    return Posted(number=call.body.number)


async def text(_call: Call) -> Answer:
    return JsonText('{"made":"already"}')


async def fail(_call: Call) -> Answer:
    raise RuntimeError("secret of the inside")


ROUTES = [
    Route("GET", "/api/v1/echo/{name}", "viewer", echo, "Echo.", query=Asked),
    Route("POST", "/api/v1/model", "operator", model, "Model.", body=Posted, answer=Posted),
    Route("POST", "/api/v1/bare", "operator", text, "No body."),
    Route("GET", "/api/v1/text", "viewer", text, "Text."),
    Route("GET", "/api/v1/fail", "viewer", fail, "Fail."),
]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:7401", "127.0.0.1.evil.example", "[::2]:7401", ""])
async def test_other_names_are_not_answered(tmp_path: Path, host: str) -> None:
    async with served(tmp_path) as page, page.client.get(f"{page.url}/health", headers={"Host": host}) as response:
        assert response.status == 421


@pytest.mark.parametrize("path", ["/", "/health", "/api/v1/status", "/nowhere"])
async def test_every_answer_has_security_headers(tmp_path: Path, path: str) -> None:
    async with served(tmp_path) as page, page.client.get(page.url + path) as response:
        policy = response.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Cache-Control"] == ("no-cache" if path == "/" else "no-store")


async def test_answers(tmp_path: Path) -> None:
    async with served(tmp_path, Given(routes=ROUTES)) as page:
        said = await page.get("/api/v1/echo/a%20b?limit=7")
        assert said == (200, {"who": "loopback", "params": {"name": "a b"}, "query": {"limit": 7}})
        assert await page.post("/api/v1/model", {"number": 2}) == (200, {"number": 2.0})
        assert await page.get("/api/v1/text") == await page.post("/api/v1/bare", {}) == (200, {"made": "already"})
        async with page.client.head(f"{page.url}/api/v1/text") as response:
            assert (response.status, await response.read()) == (200, b"")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/v1/echo/a?limit=x", 400),
        ("/api/v1/echo/a?limit=1&limit=2", 400),
        ("/api/v1/echo/a?limit=1&more=2", 400),
        ("/api/v1/echo/" + "a" * 300, 400),
        ("/api/v1/text?x=1", 400),
        ("/api/v1/model", 405),
        ("/nowhere", 404),
        ("/../../etc/passwd", 404),
        ("/web/../http/app.py", 404),
    ],
)
async def test_invalid_requests_are_refused_in_json(tmp_path: Path, path: str, status: int) -> None:
    async with served(tmp_path, Given(routes=ROUTES)) as page:
        got, said = await page.get(path)
        assert (got, said["code"]) == (status, "RC305")


@pytest.mark.parametrize(
    ("content_type", "body", "status"),
    [
        ("application/json", b'{"number": 1}', 200),
        ("application/json; charset=utf-8", b'{"number": 1}', 200),
        ("text/plain", b'{"number": 1}', 415),  # a form of another site can send this
        ("application/x-www-form-urlencoded", b"number=1", 415),
        ("multipart/form-data; boundary=x", b"--x--", 415),
        ("application/json", b"", 400),
        ("application/json", b"{", 400),
        ("application/json", b"[" * 60_000, 400),
        ("application/json", b'{"number": NaN}', 400),
        ("application/json", b'{"number": 1e999}', 400),
        ("application/json", b'{"number": "1"}', 400),
        ("application/json", b'{"number": 1, "number2": 1}', 400),
        ("application/json", b"\xff\xfe", 400),
        ("application/json", b" " * 70_000, 413),
    ],
)
async def test_bodies(tmp_path: Path, content_type: str, body: bytes, status: int) -> None:
    async with served(tmp_path, Given(routes=ROUTES)) as page:
        headers = {"Content-Type": content_type, "Authorization": f"Bearer {KEY}"}
        async with page.client.post(f"{page.url}/api/v1/model", data=body, headers=headers) as response:
            assert response.status == status
            assert response.content_type == "application/json"


async def test_acts_of_another_site_are_refused_even_with_a_token(tmp_path: Path) -> None:
    async with served(tmp_path, Given(routes=ROUTES)) as page:
        headers = {"Authorization": f"Bearer {KEY}", "Origin": "http://evil.example"}
        async with page.client.post(f"{page.url}/api/v1/model", json={"number": 1}, headers=headers) as response:
            assert (response.status, (await response.json())["code"]) == (403, "RC307")


async def test_internal_errors_reveal_no_details(tmp_path: Path) -> None:
    async with served(tmp_path, Given(routes=ROUTES)) as page:
        status, said = await page.get("/api/v1/fail")
        assert (status, said["code"]) == (500, "RC000")
        assert "secret" not in str(said)


async def test_pages_come_compressed_and_are_not_sent_twice(tmp_path: Path) -> None:
    async with served(tmp_path) as page, ClientSession(auto_decompress=False) as client:
        asked: dict[str, Any] = {"headers": {"Accept-Encoding": "gzip"}}
        async with client.get(page.url + "/", **asked) as response:
            assert response.headers["Content-Encoding"] == "gzip"
            assert response.content_type == "text/html"
            etag = response.headers["ETag"]
        async with client.get(page.url + "/", headers={"If-None-Match": etag}) as response:
            assert (response.status, await response.read()) == (304, b"")
