"""Test `rollcast run` against a served API: what it shows, and that nothing is changed without being asked for."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from coordinator.core.events.operator_events import RunFinishing, RunPaused, RunResumed
from coordinator.http.routes import Answer, Call, Route
from rollcast.cli.coordinator_api import TOKEN_VARIABLE
from rollcast.cli.live import control
from rollcast.wire.ids import Step
from tests.cli.live.test_operator import run_folder
from tests.coordinator.api.test_run_control import Control
from tests.coordinator.http.serving import Given, served


async def test_a_run_is_shown_paused_and_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    alert = {"severity": "warning", "text": "S is small.", "fix": "Raise it."}
    overview = {"run_name": "local", "step": 1200, "steps": 2000, "phase": "training", "ended": "", "alerts": [alert]}
    overview["waiting"] = {"sentence": "Healthy: training step 1201."}

    async def read(_call: Call) -> Answer:
        return overview

    acts = Control()
    routes = [Route("GET", "/api/v1/overview", "viewer", read, "Overview."), *acts.routes]
    async with served(tmp_path, Given(routes=routes)) as page:
        run = run_folder(tmp_path / "run", page.url)
        assert await asyncio.to_thread(control.show, run=run) == 0
        assert capsys.readouterr().out.splitlines() == [
            "local: step 1,200 of 2,000, training",
            "Healthy: training step 1201.",
            "warning: S is small. Raise it.",
        ]
        overview["steps"] = 0
        await asyncio.to_thread(control.show, run=run)
        assert capsys.readouterr().out.startswith("local: a cell of the head's run, training\n")
        await asyncio.to_thread(control.pause, preview=True, run=run)
        assert "Carry it out without --preview." in capsys.readouterr().out
        await asyncio.to_thread(control.finish, run=run)
        assert "Carry it out with --yes." in capsys.readouterr().out
        assert not acts.orders
        await asyncio.to_thread(control.pause, reason="heat", run=run)
        assert capsys.readouterr().out.splitlines()[-1] == (
            "warning: Workers stay on for 2 $/h; drain those that you pay for."
        )
        await asyncio.to_thread(control.resume, run=run, json_output=True)
        assert json.loads(capsys.readouterr().out) == {
            "changes": True,
            "sentence": "The run goes on with step 1.",
            "warnings": [],
            "dry_run": False,
        }
        await asyncio.to_thread(control.finish, yes=True, run=run)
    assert acts.orders == [RunPaused("heat"), RunResumed(), RunFinishing(Step(0))]
