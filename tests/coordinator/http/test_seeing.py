"""How callers are seen; tests/peer/donor/test_nat_probe.py has the other end, and real routers."""

from __future__ import annotations

import json
from pathlib import Path

import aiohttp
import pytest

from coordinator.http import seeing
from coordinator.http.speed import AT_ONCE
from tests.coordinator.http.test_speed import NONCE, invited
from tests.coordinator.running import running


async def test_a_caller_that_listens_nowhere_is_seen_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeing, "SECOND_DEADLINE_S", 0.1)
    async with (
        running(tmp_path) as run,
        aiohttp.ClientSession(run.http_url, headers=invited(run)) as session,
        session.post("/api/v1/speed/seen", json={"nonce": NONCE}) as response,
    ):
        assert response.connection is not None
        assert response.connection.transport is not None
        port = response.connection.transport.get_extra_info("sockname")[1]
        first, second = (json.loads(line) for line in (await response.text()).splitlines())
    assert first == {"address": "127.0.0.1", "port": port, "second_port": first["second_port"]}
    assert second == {"second": None, "reached": False}


async def test_what_may_not_be_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as run, aiohttp.ClientSession(run.http_url) as session:
        headers = {"Authorization": "Invite nonsense"}
        async with session.post("/api/v1/speed/seen", json={"nonce": NONCE}, headers=headers) as response:
            assert (response.status, (await response.json())["code"]) == (403, "RC301")
        for wrong in ({}, {"nonce": "x"}, {"nonce": NONCE, "port": 22}):
            async with session.post("/api/v1/speed/seen", json=wrong, headers=invited(run)) as response:
                assert response.status == 400


async def test_few_are_looked_at_at_once(tmp_path: Path) -> None:
    async with running(tmp_path) as run, aiohttp.ClientSession(run.http_url, headers=invited(run)) as session:
        open_ones = [await session.post("/api/v1/speed/seen", json={"nonce": NONCE}) for _ in range(AT_ONCE)]
        async with session.post("/api/v1/speed/seen", json={"nonce": NONCE}) as refused:
            assert refused.status >= 429
        for one in open_ones:
            one.close()
