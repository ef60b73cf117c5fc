"""Serve the run's fleet: the workers on offer, and the act that starts and stops them by name."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from pydantic import Field

from capacity.fleet.overview import FleetOverview
from capacity.model.workers import WORKER_ID
from coordinator.fleet.setup import FleetHandle
from coordinator.http.routes import Answer, Body, Call, Route

WORKERS_AT_ONCE_MAX = 10_000
REASON_LENGTH_MAX = 200

WorkerName = Annotated[str, Field(pattern=f"^{WORKER_ID.pattern}$")]


class FleetAct(Body):
    """Workers to start and to stop, by their names in the run's pool. Those that run already are not started again."""

    start: list[WorkerName] = Field(default_factory=list, max_length=WORKERS_AT_ONCE_MAX)
    stop: list[WorkerName] = Field(default_factory=list, max_length=WORKERS_AT_ONCE_MAX)
    reason: str = Field("", max_length=REASON_LENGTH_MAX)


class FleetRoutes:
    """Routes of the fleet of workers at providers."""

    def __init__(self, handle: FleetHandle) -> None:
        self._handle = handle

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                "/api/v1/fleet",
                "viewer",
                self._fleet,
                "Return the workers that the run may start, and their states.",
                answer=FleetOverview,
            ),
            Route(
                "POST",
                "/api/v1/acts/fleet",
                "operator",
                self._apply,
                "Start and stop workers of the run's pool.",
                body=FleetAct,
                answer=FleetOverview,
                act="fleet",
                needs_run=True,
                about=_about,
            ),
        ]

    async def _fleet(self, _call: Call) -> Answer:
        return _json(self._handle.overview())

    async def _apply(self, call: Call) -> Answer:
        asked: FleetAct = call.body
        return _json(await self._handle.apply(asked.start, asked.stop, asked.reason or "an operator asked for it"))


def _json(overview: FleetOverview) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(overview)
    return plain


def _about(call: Call) -> tuple[str, str]:
    asked: FleetAct = call.body
    return asked.reason, f"start {len(asked.start)}, stop {len(asked.stop)}"
