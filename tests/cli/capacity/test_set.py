from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from coordinator.core.events.operator_events import PublishPeriodChanged, StalenessLimitChanged
from rollcast.cli.capacity.live import price
from rollcast.cli.capacity.set import change
from rollcast.cli.coordinator_api import TOKEN_VARIABLE
from rollcast.runtime.errors import ConfigError, MalformedMessage
from tests.cli.run.test_workers import run_folder
from tests.coordinator.api.test_operator import Acts
from tests.coordinator.http.serving import Given, served


async def test_settings_are_shown_previewed_and_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    acts = Acts()
    async with served(tmp_path, Given(routes=acts.routes)) as page:
        run = run_folder(tmp_path / "run", page.url)
        await asyncio.to_thread(change, run=run)
        assert capsys.readouterr().out.splitlines() == [
            "S                 3  0 to 3 can be set",
            "kappa             1  1 to 4 can be set",
            "$/h at most       no limit",
            "$ in all at most  no limit",
        ]
        await asyncio.to_thread(change, staleness_limit=2, preview=True, run=run)
        assert capsys.readouterr().out.startswith("fewer")
        assert acts.orders == []
        await asyncio.to_thread(change, publish_every_steps="auto", usd_per_hour_max="2.5", run=run, json_output=True)
        said = json.loads(capsys.readouterr().out)
        assert (said["publish_every_steps"]["auto"], said["usd_per_hour_max"]["value"]) == (True, 2.5)
        await asyncio.to_thread(change, publish_every_steps="2", usd_per_hour_max="none", run=run)
        assert "kappa             2 " in capsys.readouterr().out
        with pytest.raises(MalformedMessage, match="S can be set"):
            await asyncio.to_thread(change, staleness_limit=9, run=run)
        await asyncio.to_thread(change, staleness_limit=2, run=run)
        await asyncio.to_thread(price, 2.0, name="a", run=run)
    assert acts.orders[0] == PublishPeriodChanged(0)
    assert acts.orders[-2] == StalenessLimitChanged(2)
    for wrong in ({"publish_every_steps": "often"}, {"usd_total_max": "much"}):
        with pytest.raises(ConfigError, match="neither"):
            change(**wrong, run=run)  # type: ignore[arg-type]
