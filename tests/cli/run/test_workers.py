"""What an operator does to workers from the command line, against a served API."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from coordinator.core.events.operator_events import PeerBanned, PeerDrained, PeerEnabled, PeerPinned
from coordinator.http.routes import Answer, Call, Route
from rollcast.cli.coordinator_api import TOKEN_VARIABLE
from rollcast.cli.options import RunOptions
from rollcast.cli.run import workers
from rollcast.runtime.errors import ConfigError
from rollcast.wire.ids import PeerId
from tests.coordinator.api.test_operator import Acts
from tests.coordinator.http.serving import KEY, Given, served

COLUMNS = ["name", "role", "state", "banned", "last_seen_s", "tokens_per_s", "reason"]


@pytest.fixture(autouse=True)
def _no_token_of_the_person_who_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


def run_folder(path: Path, url: str) -> RunOptions:
    (path / "secrets").mkdir(parents=True)
    (path / "secrets" / "operator.key").write_text(KEY)
    (path / "endpoints.json").write_text(json.dumps({"http_url": url, "grpc_address": ""}))
    return RunOptions(run_folder=path)


async def test_acts_are_given_and_previewed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    acts = Acts()
    async with served(tmp_path, Given(routes=acts.routes)) as page:
        run = run_folder(tmp_path / "run", page.url)
        assert await asyncio.to_thread(workers.drain, "a", reason="move", run=run) == 0
        assert capsys.readouterr().out == "drain: a\n"
        assert await asyncio.to_thread(workers.ban, "b", "who", run=run) == 76
        assert "not done: who: no peer has this id" in capsys.readouterr().out
        assert await asyncio.to_thread(workers.enable, "a", "b", run=run, json_output=True) == 0
        assert json.loads(capsys.readouterr().out)["done"] == ["a", "b"]
        assert await asyncio.to_thread(workers.pin, "off", "a", run=run) == 0
        given = list(acts.orders)
        capsys.readouterr()
        assert await asyncio.to_thread(workers.ban, "a", preview=True, run=run) == 0
        assert capsys.readouterr().out.splitlines()[0] == "fewer"
    assert acts.orders == given
    a, b = PeerId("a"), PeerId("b")
    assert given == [
        PeerDrained(a, "move", "a"),
        PeerBanned(b, "", "b"),
        PeerEnabled(a),
        PeerEnabled(b),
        PeerPinned(a, "off"),
    ]
    with pytest.raises(ConfigError, match="no worker is named"):
        workers.drain(run=run)


async def test_workers_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        ["ann", "peer", "drained", False, 0.4, 120.5, "drained by the operator"],
        ["hub", "origin", "idle", False, 0.1, 0.0, ""],
        ["old", "peer", "left", False, 90.0, None, "gone"],
        ["bad", "peer", "left", True, 90.0, None, "banned by the operator"],
    ]

    async def read(call: Call) -> Answer:
        return {"columns": COLUMNS, "rows": rows}

    route = Route("GET", "/api/v1/workers", "viewer", read, "Workers.")
    async with served(tmp_path, Given(routes=[route])) as page:
        run = run_folder(tmp_path / "run", page.url)
        await asyncio.to_thread(workers.show, run=run)
        heading, *lines = capsys.readouterr().out.splitlines()
        assert heading.split()[:3] == ["name", "state", "region"]
        assert [line.split()[0] for line in lines] == ["ann", "bad"]
        assert lines[0].endswith("drained by the operator")
        await asyncio.to_thread(workers.show, all_of_them=True, run=run, json_output=True)
        found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["workers"]
        assert [one["name"] for one in found] == ["ann", "old", "bad"]


def test_nobody_is_no_table() -> None:
    assert workers.lines_of([]) == ["No workers are connected. Create an invite for a donor with `rollcast invite`."]
