from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rollcast.cli.coordinator_api import Target
from rollcast.cli.options import RunOptions
from rollcast.cli.run import broadcast
from rollcast.runtime.errors import MalformedMessage, RollcastError, RunFolderError, Unreachable
from tests.coordinator.sample_status import sample_broadcast

Asked = Callable[..., Any]


def answers(*given: dict[str, Any] | RollcastError) -> Asked:
    """What the coordinator answers, one after the other; the last one again and again."""
    left = list(given)

    async def ask(_session: aiohttp.ClientSession, _target: Target, path: str) -> dict[str, Any]:
        assert path == "/api/v1/broadcast"
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, RollcastError):
            raise answer
        return answer

    return ask


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcast, "WATCH_INTERVAL_S", 0.001)


def test_a_person_gets_a_screen(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(broadcast, "ask", answers(sample_broadcast()))
    assert broadcast.status() == 0
    assert "waiting for peer-5" in capsys.readouterr().out


def test_json_is_one_object(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(broadcast, "ask", answers(sample_broadcast()))
    assert broadcast.status(json_output=True) == 0
    assert json.loads(capsys.readouterr().out) == sample_broadcast()


def test_no_coordinator_is_an_error_with_a_code(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError):
        broadcast.status(run=RunOptions(tmp_path))
    with pytest.raises(Unreachable):
        broadcast.status(run=RunOptions(url="http://127.0.0.1:1"))


def test_another_server_is_not_taken_for_a_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcast, "ask", answers({"peers": 3}))
    with pytest.raises(MalformedMessage):
        broadcast.status()


async def test_watching_survives_a_coordinator_that_is_away_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    newest, stop = sample_broadcast(version=88), asyncio.Event()
    gone = Unreachable("no coordinator answers at http://127.0.0.1:7401")
    monkeypatch.setattr(broadcast, "ask", answers(sample_broadcast(), gone, newest))
    shown: list[tuple[int, str]] = []

    def show(found: dict[str, Any], lost: str) -> None:
        shown.append((found["version"], lost))
        if found is newest:
            stop.set()

    async with aiohttp.ClientSession() as session:
        await broadcast.follow(session, Target(Path()), show, stop=stop)
    assert shown == [
        (87, ""),
        (87, "no coordinator answers at http://127.0.0.1:7401, for 0 s; this was the last answer"),
        (88, ""),
    ]


@pytest.mark.parametrize("first", [[], [sample_broadcast()]])
async def test_watching_ends_when_nobody_answers(first: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcast, "GONE_S", 0.0)
    monkeypatch.setattr(broadcast, "ask", answers(*first, Unreachable("gone")))
    async with aiohttp.ClientSession() as session:
        with pytest.raises(Unreachable):
            await broadcast.follow(session, Target(Path()), lambda found, lost: None, stop=asyncio.Event())


def test_watched_json_is_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    broadcast._print_json(sample_broadcast(), "")
    broadcast._print_json(sample_broadcast(), "gone")
    broadcast._print_line(sample_broadcast(), "gone")
    first, second = capsys.readouterr().out.splitlines()
    assert (json.loads(first)["version"], second) == (87, "gone")
