"""Serve health, readiness, metrics, the run's status, the caller's role, and joins."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from aiohttp import web
from typing_extensions import TypedDict

from coordinator.http.requests import read_body
from coordinator.http.routes import Access, Answer, Call, Caller, JsonText, RawRoute, Route, Topic
from coordinator.join import JoinDesk
from rollcast.runtime import finite_json, metrics
from rollcast.runtime.version import software_version
from rollcast.wire.limits import HTTP_JOIN_BYTES_MAX

KEPT_S = 0.5  # for which an answer is reused
JOIN_DEADLINE_S = 20.0
JOINS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class HttpViews:
    """The components of the coordinator that these routes read."""

    run_name: str
    run_id: str
    status: Callable[[], Mapping[str, Any]]
    not_ready_because: Callable[[], str]  # empty when ready
    metrics: Callable[[], Awaitable[bytes]]


class Session(TypedDict):
    """The caller and the run."""

    access: Access
    who: str
    reading_is_open: bool
    run_name: str
    run_id: str
    software: str


class HealthRoutes:
    """Routes and stream topics that every coordinator serves.

    Args:
        reading_is_open: whether reading requires no token.
    """

    def __init__(self, views: HttpViews, desk: JoinDesk, *, reading_is_open: bool) -> None:
        self._views = views
        self._desk = desk
        self._reading_is_open = reading_is_open
        self._joining = asyncio.Semaphore(JOINS_AT_ONCE)
        self._status_json = CachedJson(views.status)

    def routes(self) -> list[Route | RawRoute]:
        return [
            RawRoute("GET", "/health", "anyone", self._health, "Check that the process answers."),
            RawRoute("GET", "/ready", "anyone", self._ready, "Check that the run is in progress; status 503 if not."),
            RawRoute("GET", "/metrics", "viewer", self._metrics, "Return metrics for Prometheus.", "text/plain"),
            Route(
                "GET",
                "/api/v1/session",
                "viewer",
                self._session,
                "Return the caller's role, and the run.",
                answer=Session,
            ),
            Route("GET", "/api/v1/status", "viewer", self._status, "Return everything about the run and its peers."),
            RawRoute("GET", "/api/v1/ca", "anyone", self._ca, "Return the certificate of the run's CA."),
            RawRoute("POST", "/api/v1/join", "anyone", self._join, "Exchange an invite for a certificate."),
        ]

    def topics(self) -> list[Topic]:
        return [Topic("status", self._status_json.text)]

    async def _health(self, _request: web.Request, _caller: Caller) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _ready(self, _request: web.Request, caller: Caller) -> web.Response:
        reason = self._views.not_ready_because()
        answer = {"ready": not reason, "reason": reason} if caller.may("viewer") else {"ready": not reason}
        return web.json_response(answer, status=503 if reason else 200)

    async def _metrics(self, _request: web.Request, _caller: Caller) -> web.Response:
        return web.Response(body=await self._views.metrics(), headers={"Content-Type": metrics.CONTENT_TYPE})

    async def _session(self, call: Call) -> Answer:
        return {
            "access": call.caller.access,
            "who": call.caller.who,
            "reading_is_open": self._reading_is_open,
            "run_name": self._views.run_name,
            "run_id": self._views.run_id,
            "software": software_version(),
        }

    async def _status(self, _call: Call) -> JsonText:
        return self._status_json.text()

    async def _ca(self, _request: web.Request, _caller: Caller) -> web.Response:
        return web.json_response({"ca_pem": self._desk.ca_pem.decode("ascii")})

    async def _join(self, request: web.Request, _caller: Caller) -> web.Response:
        body = await read_body(request, HTTP_JOIN_BYTES_MAX)
        async with asyncio.timeout(JOIN_DEADLINE_S), self._joining:
            reply = await self._desk.join(body)
        return web.json_response(asdict(reply))


class CachedJson:
    """JSON that is made at most every KEPT_S seconds, for all callers within that time.

    Args:
        encode: returns the JSON of what ``make`` returns.
    """

    def __init__(self, make: Callable[[], Any], encode: Callable[[Any], str] = finite_json.dumps) -> None:
        self._make, self._encode = make, encode
        self._made_at_s = float("-inf")
        self._text = JsonText("")

    def text(self) -> JsonText:
        """Return the JSON of ``make()``, up to KEPT_S seconds old."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._made_at_s >= KEPT_S:
            self._made_at_s, self._text = now_s, JsonText(self._encode(self._make()))
        return self._text
