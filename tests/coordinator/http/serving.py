"""Serve the HTTP side on a port of loopback, over plain data, for tests of routes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import aiohttp

from coordinator.api.wiring import PAGES
from coordinator.http.app import HttpApp
from coordinator.http.audit import AuditLog, audit_routes
from coordinator.http.auth import Gate
from coordinator.http.health import HealthRoutes, HttpViews
from coordinator.http.openapi import description_route
from coordinator.http.routes import RawRoute, Route, Topic
from coordinator.http.server import HttpServer
from coordinator.http.stream import Hub
from coordinator.http.tokens import TokenBook, TokenRoutes
from coordinator.join import JoinDesk, JoinReply
from coordinator.ledger.sql_access import AuditRow
from coordinator.stores.sqlite import Ledger
from rollcast.runtime.errors import RunOver
from rollcast.web.assets import STATIC, Assets
from tests.coordinator.sample_status import sample_status

LOCAL = frozenset({"127.0.0.1", "localhost"})
KEY = "the-key-of-the-run"
ASSETS = Assets.of({"/": PAGES, "/web/": STATIC})


class FakeDesk:
    """Answers every join with ``answer``."""

    ca_pem = b"-----BEGIN CERTIFICATE-----\n"

    def __init__(self) -> None:
        self.answer: JoinReply | Exception = JoinReply("pem", "run-1", "12D3KooW", "127.0.0.1:7400")

    async def join(self, body: bytes) -> JoinReply:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@dataclass
class Given:
    """The served run and routes; by default a run in the middle of its life."""

    status: dict[str, Any] = field(default_factory=sample_status)
    not_ready: str = ""
    routes: Sequence[Route | RawRoute] = ()
    topics: Sequence[Topic] = ()
    open_reading: bool = True
    stream_interval_s: float = 0.05
    hosts: frozenset[str] | None = LOCAL
    run_over: RunOver | None = None

    def app(self, ledger: Ledger, tokens: TokenBook, desk: FakeDesk) -> HttpApp:
        views = HttpViews(
            run_name="local",
            run_id="run-1",
            status=lambda: self.status,
            not_ready_because=lambda: self.not_ready,
            metrics=_metrics,
        )
        gate = Gate(KEY, tokens, open_reading=self.open_reading)
        health = HealthRoutes(views, cast(JoinDesk, desk), reading_is_open=self.open_reading)
        audit = AuditLog(ledger)
        hub = Hub([*health.topics(), *self.topics], gate, interval_s=self.stream_interval_s)
        routes = [
            *health.routes(),
            *TokenRoutes(tokens).routes(),
            *audit_routes(audit),
            *self.routes,
            hub.route(),
        ]
        app_routes = [*routes, description_route(routes)]
        return HttpApp(app_routes, hub, gate, audit, ASSETS, self.hosts, run_over=lambda: self.run_over)


async def _metrics() -> bytes:
    return b"rollcast_learner_step 87.0\n"


@dataclass
class Served:
    """A served app and a client of it."""

    server: HttpServer
    app: HttpApp
    client: aiohttp.ClientSession
    desk: FakeDesk
    tokens: TokenBook

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    async def get(self, path: str, token: str | None = None) -> tuple[int, Any]:
        async with self.client.get(self.url + path, headers=_headers(token)) as response:
            return response.status, await response.json()

    async def post(self, path: str, values: Any, token: str | None = KEY) -> tuple[int, Any]:
        async with self.client.post(self.url + path, json=values, headers=_headers(token)) as response:
            return response.status, await response.json()

    async def audit(self) -> list[AuditRow]:
        """Return the rows of the audit log, oldest first."""
        return [row for _, row in await self.app.audit.rows(None, 1000)][::-1]


def _headers(token: str | None) -> dict[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {token}"}


@asynccontextmanager
async def served(folder: Path, given: Given | None = None, **options: Any) -> AsyncIterator[Served]:
    """Serve an application with its ledger in ``folder``; ``options`` are those of HttpServer.start."""
    ledger, desk = Ledger.open(folder / "store.sqlite"), FakeDesk()
    tokens = TokenBook(ledger)
    await tokens.load()
    app = (given or Given()).app(ledger, tokens, desk)
    server = await HttpServer.start(app, port=0, tls=None, **({"host": "127.0.0.1"} | options))
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as client:
        yield Served(server, app, client, desk, tokens)
    await server.stop()
    await ledger.close()
