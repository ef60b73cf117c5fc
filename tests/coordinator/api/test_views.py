from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from structlog.testing import capture_logs

from coordinator.api import views as reads_module
from coordinator.api.views import ViewRoutes
from coordinator.http import health
from coordinator.http.routes import Route
from coordinator.stores.sqlite import Ledger
from coordinator.views.alerts import Health
from coordinator.views.registry import ViewedRun
from rollcast.runtime.run_folder import RunFolder
from tests.coordinator.core_world import World
from tests.coordinator.http.serving import Given, Served, served
from tests.coordinator.views.viewed import world


@asynccontextmanager
async def serving(tmp_path: Path, run: World) -> AsyncIterator[tuple[Served, ViewRoutes, Ledger]]:
    """Serve the routes over a run folder whose ledger has one event."""
    folder = RunFolder(tmp_path / "runs" / "one").prepare()
    ledger = Ledger.open(folder.ledger)
    await ledger.record_event("peer_joined", "12D3a", "ada as peer", cause="peer 12D3a")
    folder.metrics.write_text('{"step": 1, "loss": 0.5}\n')
    viewed = ViewedRun(run.core, lambda: run.now, lambda: 1e9 + run.now, lambda: None, Health)
    views = ViewRoutes(viewed, folder)
    given = Given(routes=views.routes(), topics=views.topics())
    async with served(tmp_path / "served", given) as page:
        yield page, views, ledger
    await ledger.close()


@pytest.fixture(autouse=True)
def _no_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "served").mkdir()
    (tmp_path / "runs").mkdir()
    monkeypatch.setattr(health, "KEPT_S", 0.0)


async def test_every_view_matches_its_declared_type(tmp_path: Path) -> None:
    async with serving(tmp_path, world("a", "b")) as (page, views, _):
        paths = {
            "/api/v1/overview": ("run_name", "local"),
            "/api/v1/workers": ("left_out", 0),
            "/api/v1/broadcast": ("version", 0),
            "/api/v1/capacity": ("mode", "off"),
            "/api/v1/reputations": ("peers", []),
            "/api/v1/history": ("times_unix_s", []),
            "/api/v1/steps": ("rows", [[1, 0.5]]),
            "/api/v1/runs": None,
            "/api/v1/events": ("next_before", None),
            "/api/v1/events/1": ("name", "ada"),
            "/api/v1/explain?of=peer&id=ada": ("title", "peer ada"),
        }
        routes: list[Route] = views.routes()
        asked = {path.partition("?")[0].replace("events/1", "events/{id}") for path in paths}
        assert {one.path for one in routes} == asked
        for path, expected in paths.items():
            status, answer = await page.get(path)
            assert status == 200, (path, answer)
            if expected is not None:
                assert answer[expected[0]] == expected[1], path
        for route in routes:
            TypeAdapter(route.answer).json_schema(mode="serialization")


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/steps?run=..%2F..%2Fetc",
        "/api/v1/steps?run=..",
        "/api/v1/steps?points=0",
        "/api/v1/history?span_s=nan",
        "/api/v1/events?limit=100000",
        "/api/v1/events?before=-1",
        "/api/v1/events/none",
        "/api/v1/events/99",
        "/api/v1/explain?of=lease&id=7",
        "/api/v1/explain?of=secrets&id=7",
        "/api/v1/explain?of=peer",
        "/api/v1/reputations?peer=nobody",
    ],
)
async def test_invalid_queries_are_refused(tmp_path: Path, path: str) -> None:
    async with serving(tmp_path, world("a")) as (page, _, _):
        status, answer = await page.get(path)
        assert (status, answer["code"]) == (400, "RC305")


async def lines(page: Served, topics: str) -> AsyncGenerator[tuple[str, Any], None]:
    """Yield the events of the stream."""
    async with page.client.get(f"{page.url}/api/v1/stream?topics={topics}") as response:
        name = ""
        async for line in response.content:
            if line.startswith(b"event: "):
                name = line[7:].strip().decode()
            elif line.startswith(b"data: "):
                yield name, json.loads(line[6:])


async def test_stream_sends_views_and_only_new_rows(tmp_path: Path) -> None:
    run = world("a")
    async with serving(tmp_path, run) as (page, views, ledger), asyncio.timeout(20):
        told: dict[str, list[Any]] = {}
        happened = False
        async with aclosing(lines(page, "overview,workers,broadcast,capacity,history,steps,events")) as events:
            async for name, data in events:
                told.setdefault(name, []).append(data)
                if len(told.get("overview", ())) == 3 and not happened:
                    happened = True
                    run.now += 1.0
                    await ledger.record_event("standby", "12D3a", "off", cause="plan 1")
                    with (tmp_path / "runs" / "one" / "metrics.jsonl").open("a") as file:
                        file.write('{"step": 2, "loss": 0.4}\n')
                    list(views._registry.sample())
                if {"steps", "history"} <= set(told) and len(told.get("events", ())) == 2:
                    break
        assert {"overview", "workers", "broadcast", "capacity"} <= set(told)
        assert [[one["kind"] for one in once["events"]] for once in told["events"]] == [["peer_joined"], ["standby"]]
        assert [one["rows"] for one in told["steps"]] == [[[2, 0.4]]]
        assert told["history"][0]["values"]["version_lag"] == [0.0, 0.0, "a"]
        assert len(told["history"]) == 1


async def test_history_is_sampled_while_served(tmp_path: Path) -> None:
    run = world("a")
    folder = RunFolder(tmp_path / "runs" / "two").prepare()
    ledger = Ledger.open(folder.ledger)
    views = ViewRoutes(ViewedRun(run.core, lambda: run.now, lambda: 7.0, lambda: None, Health), folder)
    sampling = views.sampling(None)  # type: ignore[arg-type]
    await anext(sampling)
    async with asyncio.timeout(5.0):
        while views._registry.history.newest() is None:  # noqa: ASYNC110 - its task takes the sample in several turns
            await asyncio.sleep(0)
    with pytest.raises(StopAsyncIteration):
        await anext(sampling)
    await ledger.close()


async def test_tables_of_large_fleets_are_sent_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path / "runs" / "three").prepare()
    run = world("a", "b")
    topics = {
        one.name: one
        for one in ViewRoutes(ViewedRun(run.core, lambda: run.now, lambda: 7.0, lambda: None, Health), folder).topics()
    }
    monkeypatch.setattr(reads_module, "MEMBERS_SENT_PER_SECOND", 0.001)
    assert topics["workers"].make() is not None
    assert topics["workers"].make() is None
    assert [topics["overview"].make() is not None for _ in range(2)] == [True, True]


async def test_views_of_many_members_are_made_in_turns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(reads_module, "MADE_AT_ONCE_MAX", 1)
    run = world("a", "b")
    views = ViewRoutes(
        ViewedRun(run.core, lambda: run.now, lambda: 7.0, lambda: None, Health), RunFolder(tmp_path / "one").prepare()
    )
    topics = {topic.name: topic for topic in views.topics()}
    for name in ("workers", "broadcast", "capacity"):
        assert topics[name].make() is None, "it is being made"
    texts = await asyncio.gather(views._workers.get(), views._workers.get())
    assert texts[0] is texts[1]
    assert [row[1] for row in json.loads(texts[0])["rows"]] == ["origin", "a", "b"]
    assert topics["workers"].make() is texts[0]
    assert json.loads(await views._broadcast.get())["peers_holding"]["total"] == 2


def test_a_store_that_cannot_be_read_is_logged_once(tmp_path: Path) -> None:
    folder, run = RunFolder(tmp_path / "runs" / "four").prepare(), world("a")
    views = ViewRoutes(ViewedRun(run.core, lambda: run.now, lambda: 7.0, lambda: None, Health), folder)
    folder.ledger.write_bytes(b"no ledger" * 1000)
    with capture_logs() as logs:
        assert [views._newest_decisions() for _ in range(3)] == [()] * 3
    assert [(line["event"], line["cause"]) for line in logs] == [("events could not be read", "file is not a database")]
