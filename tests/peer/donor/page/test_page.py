from __future__ import annotations

import asyncio
import tarfile
from datetime import datetime
from io import BytesIO
from pathlib import Path

import aiohttp
import pytest

from rollcast.wire.donor.control_socket import request
from tests.peer.donor.page.played_host import PEER_ID, SATURDAY_NOON, played_donor


async def test_the_page_reads_limits_identity_history_and_bug_report(tmp_path: Path) -> None:
    async with played_donor(tmp_path) as (_, _, url), _session(url) as session:
        limits = await (await session.get("/api/v1/limits")).json()
        assert limits["weeks"]["network_hours"] == []
        assert limits["weeks"]["compute_hours"][0] == [1320, 1860]
        assert limits["meanings"]["upload_mbit_s_max"].startswith("Cap on the chunks")
        assert limits["limits"]["upload_gb_month"] == 200.0
        identity = await (await session.get("/api/v1/identity")).json()
        assert (identity["peer_id"], identity["public_name"]) == (PEER_ID, "")
        assert identity["key_file"] == str(tmp_path / "identity.key")
        rows = await _history(session)
        assert rows[0][1] > 4000.0
        answer = await session.post("/api/v1/bugreport", json={})
        assert "rollcast-bugreport-20261128-1200" in answer.headers["Content-Disposition"]
        with tarfile.open(fileobj=BytesIO(await answer.read())) as archive:
            assert any(name.endswith("status.json") for name in archive.getnames())


GENERATING = ("generating", "64 rollouts with version 1841")


@pytest.mark.parametrize(
    ("begins", "state", "until"),
    [
        (SATURDAY_NOON, GENERATING, "2026-11-28T14:00"),
        (datetime(2026, 11, 23, 1), ("resting", "outside the hours for computing, next Mon 22:00"), "2026-11-23T03:00"),
        (datetime(2026, 11, 24, 23), GENERATING, "2026-11-25T01:00"),
        (datetime(2028, 2, 29, 22, 30), GENERATING, "2028-03-01T00:30"),
        (
            datetime(2027, 12, 31, 12),
            ("resting", "outside the hours for computing, next Fri 22:00"),
            "2027-12-31T14:00",
        ),
    ],
    ids=["Saturday", "Monday night", "Tuesday night", "leap day", "the year's last day"],
)
async def test_the_page_uses_the_given_clocks(
    tmp_path: Path, begins: datetime, state: tuple[str, str], until: str
) -> None:
    async with played_donor(tmp_path, begins=begins) as (_, _, url):
        async with _session(url) as session:
            assert 0.0 <= (await _history(session))[0][0] - begins.timestamp() < 60.0
        shown = await asyncio.to_thread(request, tmp_path, {"do": "status"})
        assert (shown["state"], shown["reason"]) == state
        assert sum(shown["today"].values()) == 40
        assert shown["newest"][0]["at"].startswith(f"{begins:%Y-%m-%dT%H:%M}")
        assert (tmp_path / "receipts" / f"{begins:%Y-%m-%d}.jsonl").exists()
        await asyncio.to_thread(request, tmp_path, {"do": "pause", "for_s": 7200.0})
        assert (await asyncio.to_thread(request, tmp_path, {"do": "status"}))["until"] == until


def _session(url: str) -> aiohttp.ClientSession:
    base, _, token = url.partition("/#token=")
    return aiohttp.ClientSession(base, headers={"Authorization": f"Bearer {token}"})


async def _history(session: aiohttp.ClientSession) -> list[list[float]]:
    """Wait for the first sample."""
    for _ in range(300):
        rows: list[list[float]] = (await (await session.get("/api/v1/history")).json())["rows"]
        if rows:
            return rows
        await asyncio.sleep(0.1)
    raise AssertionError("no look was taken within 30 s")
