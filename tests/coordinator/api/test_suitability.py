"""Test the value of machines over real HTTP, for a run that has just begun; and the planner's verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import aiohttp

from coordinator.api.suitability import _planned
from tests.coordinator.api.test_speed_test import invited
from tests.coordinator.core.activation.test_suitability import DEMAND, FAST, QUESTION
from tests.coordinator.running import running

MEASURED = {"tokens_per_s": 500.0, "concurrent_rollouts": 8, "upload_bytes_per_s": 1e6}

WRONG: list[object] = [
    {},
    {"tokens_per_s": 1.0},
    {**MEASURED, "tokens_per_s": -1.0},
    {**MEASURED, "concurrent_rollouts": 0},
    {**MEASURED, "upload_bytes_per_s": 1e300},
    {**MEASURED, "surprise": 1},
    [1],
]


async def test_new_run_reports_its_needs_without_guesses(tmp_path: Path) -> None:
    async with running(tmp_path) as run, aiohttp.ClientSession(run.http_url, headers=invited(run)) as session:
        async with session.get("/api/v1/worth") as response:
            needs = await response.json()
        assert (needs["staleness_limit"], needs["model_json"], needs["t_train_s"]) == (2, None, None)
        assert needs["new_tokens_max"] >= 1
        async with session.post("/api/v1/worth", json=MEASURED) as response:
            worth = await response.json()
        assert (response.status, worth["meets"], worth["staleness_limit"]) == (200, None, 2)
        assert "not timed enough" in worth["sentence"]
        for body in WRONG:
            async with session.post("/api/v1/worth", json=body) as response:
                assert (response.status, (await response.json())["code"]) == (400, "RC305")
        async with session.post("/api/v1/worth", json=MEASURED, headers={"Authorization": "Invite no"}) as response:
            assert response.status == 403


def test_answer_has_the_planners_verdict() -> None:
    said = _planned(replace(QUESTION, demand=replace(DEMAND, rollouts_per_step=340)), FAST)
    assert said.startswith("planner: on: 2 rollouts/s for 0 $/h")
