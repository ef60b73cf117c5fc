from __future__ import annotations

import asyncio
import tarfile
from io import BytesIO
from pathlib import Path

import aiohttp

from tests.peer.donor.page.played_host import PEER_ID, played_donor


async def test_what_the_page_reads(tmp_path: Path) -> None:
    async with played_donor(tmp_path) as (_, _, url):
        base, _, token = url.partition("/#token=")
        async with aiohttp.ClientSession(base, headers={"Authorization": f"Bearer {token}"}) as session:
            limits = await (await session.get("/api/v1/limits")).json()
            assert limits["weeks"]["network_hours"] == []
            assert limits["weeks"]["compute_hours"][0] == [1320, 1860]
            assert limits["meanings"]["upload_mbit_s_max"].startswith("Cap on chunks")
            assert limits["limits"]["upload_gb_month"] == 200.0
            identity = await (await session.get("/api/v1/identity")).json()
            assert (identity["peer_id"], identity["public_name"]) == (PEER_ID, "")
            assert identity["key_file"] == str(tmp_path / "identity.key")
            rows = await _history(session)
            assert rows[0][1] > 4000.0
            answer = await session.post("/api/v1/bugreport", json={})
            with tarfile.open(fileobj=BytesIO(await answer.read())) as archive:
                assert any(name.endswith("status.json") for name in archive.getnames())


async def _history(session: aiohttp.ClientSession) -> list[list[float]]:
    """Once the first look was taken."""
    for _ in range(300):
        rows: list[list[float]] = (await (await session.get("/api/v1/history")).json())["rows"]
        if rows:
            return rows
        await asyncio.sleep(0.1)
    raise AssertionError("no look was taken within 30 s")
