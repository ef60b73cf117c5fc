"""Estimate a machine's value to the run: before it joins, with its invite, or for people with a token."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import structlog
from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from capacity.catalogue.models import models
from coordinator.api.invite_auth import check_invited
from coordinator.core.activation.suitability import (
    THIS_MACHINE,
    Offer,
    Question,
    RunModel,
    Suitability,
    offered_worker,
    question_of,
    run_model,
    suitability_of,
)
from coordinator.core.decisions.state import CoreState
from coordinator.http.requests import read_body
from coordinator.http.routes import Caller, RawRoute
from coordinator.join import JoinDesk
from coordinator.ledger.store import RunStore
from rollcast.runtime import finite_json
from rollcast.runtime.errors import MalformedMessage, WaitTimedOut
from rollcast.runtime.waits import deadline
from rollcast.wire.ids import Version
from rollcast.wire.limits import RATE_MAX
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.records import VerifiedVersion, parse_announcement

log = structlog.get_logger()

LEDGER_DEADLINE_S = 10.0
PLAN_DEADLINE_S = 8.0
PLANNED_WORKERS_MAX = 2000  # in larger runs the answer has no verdict of the planner
_BODY_BYTES_MAX = 4096
_SUITABILITY = TypeAdapter(Suitability)


class Measurements(BaseModel):
    """The machine's measurements of itself."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tokens_per_s: float = Field(ge=0.0, le=RATE_MAX)
    concurrent_rollouts: int = Field(ge=1, le=1 << 20)
    upload_bytes_per_s: float | None = Field(None, gt=0.0, le=RATE_MAX)
    download_bytes_per_s: float | None = Field(None, gt=0.0, le=RATE_MAX)
    memory_bytes: float | None = Field(None, gt=0.0, le=1e15)


class SuitabilityRoutes:
    """Routes that report the run's needs and estimate a machine's value.

    Args:
        now: seconds on the core's clock.
    """

    def __init__(self, desk: JoinDesk, ledger: RunStore, state: CoreState, now: Callable[[], float]) -> None:
        self._desk = desk
        self._ledger = ledger
        self._state = state
        self._now = now
        self._known: tuple[Version, VerifiedVersion] | None = None
        self._planning = asyncio.Lock()

    def routes(self) -> list[RawRoute]:
        """Return the routes; each handler checks the invite itself."""
        path = "/api/v1/worth"
        return [
            RawRoute(
                "GET", path, "anyone", self._needs, "Return the run's needs, for a machine to measure itself against."
            ),
            RawRoute(
                "POST", path, "anyone", self._estimate, "Estimate the value of a machine with these measurements."
            ),
        ]

    async def _needs(self, request: web.Request, caller: Caller) -> web.Response:
        await check_invited(self._desk, caller, request.method, request.headers)
        newest, settings = await self._newest(), self._state.settings
        record = None if newest is None else newest.whole
        question = question_of(self._state, self._now())
        demand = question.demand
        return _json(
            {
                "run_name": settings.run_name,
                "model_json": None if record is None else record.model_json,
                "state_bytes": None if record is None else record.state_size_bytes,
                "new_tokens_max": settings.sampling.max_new_tokens,
                "tokens_per_rollout": question.tokens_per_rollout,
                "staleness_limit": question.staleness_limit,
                "publish_every_steps": self._state.rules.publish_every_steps,
                "t_train_s": None if demand is None else demand.t_train_s,
                "update_bytes": None if demand is None else demand.update_bytes,
            }
        )

    async def _estimate(self, request: web.Request, caller: Caller) -> web.Response:
        await check_invited(self._desk, caller, request.method, request.headers)
        try:
            measured = Measurements.model_validate_json(await read_body(request, _BODY_BYTES_MAX))
        except ValidationError as error:
            raise MalformedMessage(
                "the body does not hold valid measurements", cause=str(error.errors()[0]["msg"])[:256]
            ) from None
        offer, question = Offer(**measured.model_dump()), question_of(self._state, self._now())
        worth = suitability_of(question, offer, _model(await self._newest()))
        answer = _SUITABILITY.dump_python(worth, mode="json")
        if worth.meets is not None and question.demand is not None and offer.tokens_per_s > 0:
            answer["reasons"] += await self._planner_verdict(question, offer)
        return _json(answer)

    async def _planner_verdict(self, question: Question, offer: Offer) -> list[str]:
        """Return the planner's verdict on this machine next to the run's workers; empty if it is busy or fails."""
        if self._planning.locked() or len(question.workers) > PLANNED_WORKERS_MAX:
            return []
        async with self._planning:
            try:
                async with deadline(PLAN_DEADLINE_S, "the planner to place a machine"):
                    return [await asyncio.to_thread(_planned, question, offer)]
            except WaitTimedOut:
                return []
            except Exception:
                log.exception("the planner failed on an offered machine")
                return []

    async def _newest(self) -> VerifiedVersion | None:
        """Return the newest version; None before there is one."""
        newest = self._state.newest_version
        if newest is None:
            return None
        if self._known is None or self._known[0] != newest:
            async with deadline(LEDGER_DEADLINE_S, "the ledger to read the newest version"):
                stored = await self._ledger.newest_version()
            if stored is None:
                return None
            announcement = pb.VersionAnnouncement.FromString(stored.announcement)
            self._known = (newest, parse_announcement(announcement))
        return self._known[1]


def _planned(question: Question, offer: Offer) -> str:
    from capacity.planner.planner import PlanOptions, plan  # scipy takes a while to load, and most runs never need it

    assert question.demand is not None
    made = plan(question.demand, [*question.workers, offered_worker(question, offer)], PlanOptions(remedies=False))
    if made.infeasible is not None:
        return f"planner: no set of workers suffices yet: {made.infeasible.what}"
    mine = next(one for one in made.candidates if one.worker.worker_id == THIS_MACHINE)
    return f"planner: {mine.reason}"


def _model(newest: VerifiedVersion | None) -> RunModel | None:
    if newest is None:
        return None
    record = newest.whole
    elements = float(sum(math.prod(tensor.shape) for tensor in record.tensors))
    dense = {name: shape.parameters for name, shape in models().items() if not shape.active_parameters}
    return run_model(record.state_size_bytes, elements, dense, frozen=newest.base is not None)


def _json(value: object) -> web.Response:
    return web.Response(text=finite_json.dumps(value), content_type="application/json")
