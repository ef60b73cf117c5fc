"""Test the page's server: access, answers, streams and their history, port and token over restarts."""

from __future__ import annotations

import asyncio
import json
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from peer.donor.page import history
from peer.donor.page.auth import new_token, refusal
from peer.donor.page.history import COLUMNS, History
from peer.donor.page.server import FILE, PAGES, PageServer
from rollcast.runtime.errors import ConfigError
from rollcast.web.assets import STATIC, Assets


class World:
    def __init__(self, folder: Path) -> None:
        self.asked: list[dict[str, Any]] = []
        self.state = "generating"
        self.server = PageServer(
            folder,
            commands={"pause": self._pause, "limits": self._limits, "status": lambda _: {"secret": True}},
            reads={"limits": lambda: {"limits": {}}},
            topics={"report": lambda: {"state": self.state}, "sample": lambda: None},
            bug_report=self._bug_report,
        )

    @property
    def token(self) -> str:
        return self.server.url.partition("#token=")[2]

    @property
    def base(self) -> str:
        return self.server.url.partition("/#")[0]

    def _pause(self, values: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(values)
        return {"state": "paused", "reason": "paused by its owner"}

    def _limits(self, _values: dict[str, Any]) -> dict[str, Any]:
        raise ConfigError("there is no limit 'speed'", fix="`rollcast peer limits` lists them")

    async def _bug_report(self) -> tuple[str, bytes]:
        return "report.tar.gz", b"archive"


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple[World, aiohttp.ClientSession]]:
    world = World(folder)
    async with world.server.serving():
        headers = {"Authorization": f"Bearer {world.token}"}
        async with aiohttp.ClientSession(world.base, headers=headers) as session:
            yield world, session


async def test_pages_and_figures_are_for_the_owner(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, session):
        page = await session.get("/")
        assert "This machine" in await page.text()
        assert "script-src 'self'" in page.headers["Content-Security-Policy"]
        assert (await session.get("/../page_server.py")).status == 404
        assert (await session.get("/web/parts.js")).status == 200
        answer = await session.get("/api/v1/limits")
        assert (answer.status, answer.headers["Cache-Control"], await answer.json()) == (
            200,
            "no-store",
            {"limits": {}},
        )
        assert "Set-Cookie" not in answer.headers
        assert (await session.get("/api/v1/nothing")).status == 404
        assert (await session.get("/api/v1/limits", headers={"Authorization": "Bearer x"})).status == 401
        assert (await session.get("/", headers={"Host": "evil.example"})).status == 421


async def test_acts_are_the_commands_and_nothing_else(tmp_path: Path) -> None:
    async with served(tmp_path) as (world, session):
        answer = await session.post("/api/v1/acts", json={"do": "pause", "for_s": 60})
        assert (await answer.json())["state"] == "paused"
        assert world.asked == [{"do": "pause", "for_s": 60}]
        refused = await session.post("/api/v1/acts", json={"do": "limits", "set": {"speed": 1}})
        assert (refused.status, (await refused.json())["code"]) == (400, "RC101")
        for body in ({"do": "status"}, {"do": "explode"}, {}):
            assert (await session.post("/api/v1/acts", json=body)).status == 400
        json_type = {"Content-Type": "application/json"}
        for data in (b"nonsense", b"[]", b"x" * 100_000):
            assert (await session.post("/api/v1/acts", data=data, headers=json_type)).status == 400
        assert (await session.post("/api/v1/acts", data={"do": "pause"})).status == 415, "a form of another site"
        assert len(world.asked) == 1


async def test_a_bug_report_is_a_file(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, session):
        answer = await session.post("/api/v1/bugreport", json={})
        assert await answer.read() == b"archive"
        assert answer.headers["Content-Disposition"] == 'attachment; filename="report.tar.gz"'


async def test_the_stream_sends_what_changed(tmp_path: Path) -> None:
    async with served(tmp_path) as (world, session):
        assert (await session.get("/api/v1/stream?topics=nothing")).status == 400
        async with asyncio.timeout(10.0), session.get("/api/v1/stream?topics=report,sample,gone") as stream:
            assert await stream.content.readuntil(b"\n\n") == b'event: report\ndata: {"state":"generating"}\n\n'
            assert await stream.content.readuntil(b"\n\n") == b": nothing new\n\n"
            world.state = "paused"
            while b"paused" not in await stream.content.readuntil(b"\n\n"):
                pass


async def test_address_and_token_survive_a_restart_unless_the_port_is_taken(tmp_path: Path) -> None:
    async with served(tmp_path) as (world, _):
        first = world.server.url
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    async with served(tmp_path) as (world, _):
        assert world.server.url == first
    with socket.create_server(("127.0.0.1", json.loads((tmp_path / FILE).read_text())["port"])):
        async with served(tmp_path) as (world, session):
            assert world.server.url != first
            assert world.token in first
            assert (await session.get("/api/v1/limits")).status == 200
    (tmp_path / FILE).write_text('{"port": "x", "token": 3}')
    async with served(tmp_path) as (world, _):
        assert world.token not in first


def test_the_page_is_small() -> None:
    assert Assets.of({"/": PAGES, "/web/": STATIC}).gzip_bytes < 150_000


HERE = {"Host": "127.0.0.1:7000"}

KNOWN = {**HERE, "Authorization": "Bearer secret"}

ACT = {**KNOWN, "Content-Type": "application/json; charset=utf-8"}


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/", HERE, None),
        ("GET", "/web/parts.js", {"Host": "localhost:7000"}, None),
        ("GET", "/", {}, 421),
        ("GET", "/", {"Host": "evil.example:7000"}, 421),  # a name of theirs that leads to 127.0.0.1
        ("GET", "/", {"Host": "127.0.0.1:7001"}, 421),
        ("POST", "/", HERE, 405),
        ("GET", "/api/v1/report", KNOWN, None),
        ("GET", "/api/v1/report", HERE, 401),
        ("GET", "/api/v1/report", {**HERE, "Authorization": "Bearer wrong"}, 401),
        ("GET", "/api/v1/report", {**HERE, "Authorization": "Basic secret"}, 401),
        ("GET", "/api/v1/report", {**HERE, "Authorization": "Bearer \u00e9"}, 401),
        ("POST", "/api/v1/acts", ACT, None),
        ("POST", "/api/v1/acts", {**ACT, "Sec-Fetch-Site": "same-origin", "Origin": "http://127.0.0.1:7000"}, None),
        ("POST", "/api/v1/acts", {**ACT, "Sec-Fetch-Site": "cross-site"}, 403),
        ("POST", "/api/v1/acts", {**ACT, "Origin": "http://evil.example"}, 403),
        ("POST", "/api/v1/acts", {**KNOWN, "Content-Type": "text/plain"}, 415),
        ("POST", "/api/v1/acts", KNOWN, 415),
        ("PUT", "/api/v1/acts", ACT, 405),
    ],
)
def test_which_requests_are_answered(method: str, path: str, headers: dict[str, str], status: int | None) -> None:
    found = refusal(method, path, headers, token="secret", port=7000)
    assert (None if found is None else found[0]) == status


def test_tokens_are_long_and_random() -> None:
    assert new_token() != new_token()
    assert len(new_token()) >= 43


def report(sent: int = 0, received: int = 0, **readings: Any) -> dict[str, Any]:
    names = ("cpu_celsius", "gpu_celsius", "power_watts", "others_cpu_share")
    return {
        "tokens_per_second": 5.0,
        "chunk_bytes_sent": sent,
        "chunk_bytes_from_origin": received,
        "chunk_bytes_from_peers": received,
        "readings": {**dict.fromkeys(names), **readings},
    }


def test_rates_are_means_between_samples() -> None:
    kept = History()
    assert kept.newest() == []
    kept.sample(report(), 100.0)
    kept.sample(report(sent=50, received=20, cpu_celsius=61.0), 105.0)
    kept.sample(report(sent=10), 110.0)  # the process was started again
    kept.sample(report(sent=10), 110.0)  # the clock stood still
    rows = kept.to_json()["rows"]
    assert [row[2:4] for row in rows] == [[None, None], [10.0, 8.0], [0.0, 0.0], [None, None]]
    assert dict(zip(COLUMNS, rows[1], strict=True))["cpu_celsius"] == 61.0
    assert kept.newest() == rows[-1]


def test_the_oldest_samples_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_SAMPLES_KEPT", 3)
    kept = History()
    for now in range(5):
        kept.sample(report(), float(now))
    assert [row[0] for row in kept.to_json()["rows"]] == [2.0, 3.0, 4.0]
