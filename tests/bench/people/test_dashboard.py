"""Test the dashboard under load, and its pictures in the documentation."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import random
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from PIL import Image

from bench.people import dashboard
from bench.people.screenshots import BYTES_MAX, DASHBOARD, DONOR, ROOT, small
from bench.shown.fleet import draw_machines, fleet_settings
from bench.shown.run import ShownRun, shown_run


async def ask(url: str, path: str) -> Any:
    async with aiohttp.ClientSession() as session, session.get(url + path) as response:
        assert response.status == 200, await response.text()
        return await response.json()


def test_machines_follow_from_the_seed_and_settings_from_the_machines() -> None:
    machines = draw_machines(50, 7)
    assert machines == draw_machines(50, 7) != draw_machines(50, 8)
    assert len({one.peer_id for one in machines}) == len({one.name for one in machines}) == 50
    assert all(len(one.peer_id) == 52 for one in machines)
    settings = fleet_settings(machines)
    assert (settings.peers, settings.rollouts_per_step) == (50, settings.groups_per_step * settings.samples_per_group)


async def watched(run: ShownRun, seconds: float) -> None:
    """Run the fleet, then check that the ledger agrees with the status, and that nothing failed."""
    await asyncio.sleep(seconds)
    assert not run.failed.done(), run.failed.result()
    overview = await ask(run.url, "/api/v1/overview")
    workers = await ask(run.url, "/api/v1/workers")
    assert overview["workers"]["total"] >= 10
    assert overview["newest_version"] >= 1
    rows = [dict(zip(workers["columns"], row, strict=True)) for row in workers["rows"]]
    assert {row["role"] for row in rows} == {"peer", "origin"}
    assert sum(row["accepted"] for row in rows) > 0
    steps = await ask(run.url, "/api/v1/steps")
    reward = steps["columns"].index("reward_mean")
    assert [0.0 <= row[reward] <= 1.0 for row in steps["rows"]] == [True] * overview["step"]
    broadcast = await ask(run.url, "/api/v1/broadcast")
    assert len(broadcast["tree"]["nodes"]) == overview["workers"]["total"] + 1
    assert any(edge["bytes_per_s"] for edge in broadcast["tree"]["edges"])
    explained = await ask(run.url, "/api/v1/explain?of=step&id=1")
    assert explained["facts"]["rollouts_by_peer"]
    assert (await ask(run.url, "/api/v1/events?kind=peer_joined&limit=1"))["events"][0]["name"]


async def test_a_simulated_fleet_is_served_as_a_run_is(tmp_path: Path) -> None:
    async with shown_run(tmp_path / "simulated", workers=12, port=0, seed=7, warm_up_s=100.0) as run:
        assert run.page.startswith("http://127.0.0.1:")
        await watched(run, 0.5)
        virtual_s = run.fleet.ground.agenda.now
        await asyncio.sleep(1.0)
        assert 0.3 < run.fleet.ground.agenda.now - virtual_s < 3.0


async def test_acts_reach_the_simulated_fleet(tmp_path: Path) -> None:
    async with shown_run(tmp_path / "simulated", workers=8, port=0, seed=7, warm_up_s=30.0) as run:
        name = run.fleet.machines[0].name
        headers = {"Authorization": f"Bearer {run.key}"}
        body = {"act": "drain", "peers": [name], "reason": "to be moved"}
        acts = f"{run.url}/api/v1/acts/peers"
        async with aiohttp.ClientSession(headers=headers) as session, session.post(acts, json=body) as response:
            assert (await response.json())["failed"] == [], response.status
        overview = await ask(run.url, "/api/v1/overview")
        assert overview["workers"]["drained"] == 1


@pytest.mark.slow
def test_it_measures_a_small_fleet() -> None:
    parser = argparse.ArgumentParser()
    dashboard.add_arguments(parser)
    options = ["--workers", "20", "--viewers", "2", "--seconds", "2", "--rounds", "1", "--warm-up", "40"]
    outcome = dashboard.run(parser.parse_args(options))
    assert {"server_core_share", "gzip_kb"} <= set(outcome.figures)
    assert 0 < outcome.figures["gzip_kb"] < 150
    if not outcome.missing:
        assert outcome.figures["first_paint_ms"] > 0
        assert outcome.figures["update_ms"] > 0
    assert json.dumps(outcome.settings)


def noise() -> bytes:
    """Return a picture that cannot be compressed."""
    written = io.BytesIO()
    Image.frombytes("RGB", (100, 100), random.Random(7).randbytes(30_000)).save(written, "PNG")
    return written.getvalue()


def test_colours_are_kept_where_there_is_room() -> None:
    given = noise()
    same = Image.open(io.BytesIO(small(given)))
    assert same.convert("RGB").tobytes() == Image.open(io.BytesIO(given)).tobytes()
    fewer = small(given, bytes_max=15_000)
    assert len(fewer) <= 15_000 < len(small(given))
    assert Image.open(io.BytesIO(fewer)).size == (100, 100)
    with pytest.raises(ValueError, match="too large"):
        small(given, bytes_max=100)


def test_the_pictures_are_there_and_small() -> None:
    for picture in (*DASHBOARD, *DONOR):
        path = ROOT / "docs" / "pictures" / f"{picture.name}.png"
        assert 0 < path.stat().st_size <= BYTES_MAX
        with Image.open(path) as opened:
            assert opened.size == (picture.width, picture.height)
