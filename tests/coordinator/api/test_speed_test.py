"""Test measurements of a link, over real HTTP against a real coordinator."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from coordinator.api.speed_test import A_MINUTE, AT_ONCE, BYTES_A_MINUTE, BYTES_MAX, Allowance
from rollcast.runtime.errors import WaitTimedOut
from tests.coordinator.running import Running, running

NONCE = "0123456789abcdef" * 2


def invited(run: Running) -> dict[str, str]:
    return {"Authorization": f"Invite {run.invite('peer').token}"}


async def test_bytes_go_down_and_up_for_those_with_an_invite(tmp_path: Path) -> None:
    async with running(tmp_path) as run, aiohttp.ClientSession(run.http_url, headers=invited(run)) as session:
        async with session.get("/api/v1/speed/down?bytes=700001") as response:
            assert (response.status, len(await response.read())) == (200, 700_001)
        async with session.post("/api/v1/speed/up", data=bytes(1_000_003)) as response:
            answer = await response.json()
            assert (response.status, answer["bytes"]) == (200, 1_000_003)
            assert answer["seconds"] > 0.0


async def test_invalid_requests_are_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as run, aiohttp.ClientSession(run.http_url, headers=invited(run)) as session:
        for authorization in ("Invite nonsense", "Invite ", f"Invite {'x' * 300}"):
            headers = {"Authorization": authorization}
            async with session.get("/api/v1/speed/down?bytes=10", headers=headers) as response:
                assert (response.status, (await response.json())["code"]) == (403, "RC301")
            for path in ("up", "dial"):
                async with session.post(f"/api/v1/speed/{path}", data=b"{}", headers=headers) as response:
                    assert response.status == 403
        for asked in ("", "?bytes=0", "?bytes=-1", "?bytes=a", f"?bytes={BYTES_MAX + 1}", "?bytes=" + "9" * 99):
            async with session.get(f"/api/v1/speed/down{asked}") as response:
                assert response.status == 400
        with contextlib.suppress(aiohttp.ClientError):  # cut while it was still being sent
            async with session.post("/api/v1/speed/up", data=_endless()) as response:
                assert response.status == 413


async def _endless() -> AsyncIterator[bytes]:
    while True:
        yield bytes(1 << 20)


async def test_only_the_caller_is_dialed(tmp_path: Path) -> None:
    async def say(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(NONCE.encode())
        writer.close()

    server = await asyncio.start_server(say, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, running(tmp_path) as run, aiohttp.ClientSession(run.http_url, headers=invited(run)) as session:
        for nonce, reached in ((NONCE, True), ("f" * 32, False)):  # a port that sends another nonce is not reported
            async with session.post("/api/v1/speed/dial", json={"port": port, "nonce": nonce}) as response:
                assert await response.json() == {"address": "127.0.0.1", "reached": reached}
        for wrong in ({"port": 22, "nonce": NONCE}, {"port": port}, {"port": port, "nonce": "x"}, {"host": "a"}):
            async with session.post("/api/v1/speed/dial", json=wrong) as response:
                assert response.status == 400


async def test_few_are_served_at_once_and_in_a_minute() -> None:
    now = 0.0
    allowance = Allowance(lambda: now)
    async with allowance.one(1), allowance.one(1):
        with pytest.raises(WaitTimedOut):
            async with allowance.one(1):
                pass
    assert AT_ONCE == 2
    with pytest.raises(WaitTimedOut):
        async with allowance.one(BYTES_A_MINUTE):
            pass
    now = 60.0
    async with allowance.one(BYTES_A_MINUTE):
        pass
    now = 120.0
    for _ in range(A_MINUTE):
        async with allowance.one(0):
            pass
    with pytest.raises(WaitTimedOut):
        async with allowance.one(0):
            pass
