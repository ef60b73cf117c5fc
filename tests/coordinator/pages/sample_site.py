"""Serve the dashboard with made-up views, which a test changes.

`python -m tests.coordinator.pages.sample_site` shows it.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from aiohttp import web

import coordinator
from rollcast.web.assets import STATIC, Assets
from rollcast.web.headers import NO_STORE, SECURITY_HEADERS
from tests.coordinator.pages.sample_rollouts import sample_rollout, sample_rollouts
from tests.coordinator.pages.sample_views import sample_history, sample_overview, sample_runs, sample_steps

PAGES = Path(coordinator.__file__).parent / "pages"
TOKEN = "sample-token"
INTERVAL_S = 0.2  # between messages of the stream


class SampleSite:
    """A served dashboard; with ``open_reading`` it shows figures without a token."""

    def __init__(self, *, open_reading: bool = True) -> None:
        self.open_reading = open_reading
        self.views: dict[str, Any] = {
            "overview": sample_overview(),
            "history": sample_history(),
            "runs": sample_runs(),
        }
        self.asked: list[str] = []
        self.more: list[web.RouteDef] = []  # further routes, set before the start
        self._assets = Assets.of({"/": PAGES, "/web/": STATIC})
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self, port: int = 0) -> None:
        app = web.Application()
        app.router.add_get("/api/v1/session", self._session)
        app.router.add_get("/api/v1/stream", self._stream)
        app.router.add_get("/api/v1/steps", self._steps)
        app.router.add_get("/api/v1/rollouts", self._rollouts)
        app.router.add_get("/api/v1/rollouts/{id}", self._rollout)
        app.add_routes(self.more)
        app.router.add_get("/api/v1/{name}", self._view)
        app.router.add_get("/{path:.*}", self._asset)
        app.on_response_prepare.append(_secure)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port or self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    def _access(self, request: web.Request) -> str:
        if request.headers.get("Authorization") == f"Bearer {TOKEN}":
            return "admin"
        return "viewer" if self.open_reading and "Authorization" not in request.headers else "anyone"

    async def _session(self, request: web.Request) -> web.Response:
        access = self._access(request)
        if access == "anyone":
            return _refused()
        who = "sam" if access == "admin" else "loopback"
        return web.json_response(
            {"access": access, "who": who, "reading_is_open": self.open_reading, "run_name": "local", "software": "0"}
        )

    async def _view(self, request: web.Request) -> web.Response:
        if self._access(request) == "anyone":
            return _refused()
        self.asked.append(request.path_qs)
        found = self.views.get(request.match_info["name"])
        if found is None:
            return web.json_response({"code": "RC304", "what": "there is no such view here"}, status=404)
        return web.json_response(found)

    async def _steps(self, request: web.Request) -> web.Response:
        run, from_step = request.query.get("run", "local"), int(request.query.get("from_step", 0))
        current = run == "local"
        return web.json_response(sample_steps(run, 87 if current else 200, 0.92 if current else 0.81, from_step))

    async def _rollouts(self, request: web.Request) -> web.Response:
        self.asked.append(request.path_qs)
        return web.json_response(sample_rollouts(dict(request.query)))

    async def _rollout(self, request: web.Request) -> web.Response:
        return web.json_response(sample_rollout(int(request.match_info["id"])))

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        if self._access(request) == "anyone":
            return _refused()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        topics = [topic for topic in request.query.get("topics", "").split(",") if topic not in ("history", "steps")]
        with suppress(ConnectionError):  # the reader disconnected
            while True:
                events = [(topic, self.views[topic]) for topic in topics if topic in self.views]
                texts = [f"event: {topic}\ndata: {json.dumps(view)}\n\n" for topic, view in events]
                await response.write("".join([*texts, ": here\n\n"]).encode())
                await asyncio.sleep(INTERVAL_S)
        return response

    async def _asset(self, request: web.Request) -> web.Response:
        headers = request.headers
        reply = self._assets.reply(request.path, accept_encoding=headers.get("Accept-Encoding", ""))
        if reply is None:
            return web.json_response({"code": "RC304", "what": "no such page"}, status=404)
        return web.Response(status=reply.status, headers=reply.headers, body=reply.body)


def _refused() -> web.Response:
    return web.json_response({"code": "RC307", "what": "a token is needed", "fix": "sign in"}, status=401)


async def _secure(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update({**NO_STORE, **SECURITY_HEADERS, **response.headers})


async def _serve() -> None:
    site = SampleSite()
    await site.start(7488)
    print(f"http://127.0.0.1:{site.port}/#token={TOKEN}")
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve())
