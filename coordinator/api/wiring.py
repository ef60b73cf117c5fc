"""Assemble the coordinator's HTTP application from its components."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from coordinator.api.address_stream import AddressStream
from coordinator.api.evaluations import EvaluationRoutes
from coordinator.api.fleet import FleetRoutes
from coordinator.api.invites import InviteActs, InviteRoutes
from coordinator.api.observed_address import ObservedAddressRoutes
from coordinator.api.operator import ActRoutes
from coordinator.api.profiles import ProfileRoutes
from coordinator.api.rollouts import RolloutRoutes
from coordinator.api.run_control import RunControlRoutes
from coordinator.api.speed_test import Speed
from coordinator.api.suitability import SuitabilityRoutes
from coordinator.api.views import ViewRoutes
from coordinator.config.config import CoordinatorConfig
from coordinator.core.events.reach_events import SeenAt
from coordinator.fleet.setup import FleetHandle
from coordinator.http.app import HttpApp
from coordinator.http.audit import AuditLog, audit_routes
from coordinator.http.auth import Gate
from coordinator.http.health import HealthRoutes, HttpViews
from coordinator.http.openapi import description_route
from coordinator.http.routes import RawRoute, Route, Topic
from coordinator.http.stream import Hub
from coordinator.http.tokens import TokenBook, TokenRoutes, operator_key
from coordinator.join import InviteIssuer, JoinDesk
from coordinator.ledger.saved_orders import OrderRecorder, Orders
from coordinator.ledger.store import CompactingStore
from coordinator.metrics.metrics import CoordinatorMetrics
from coordinator.shell.activation_solver import PreviewSolver
from coordinator.shell.evaluations import Evaluations
from coordinator.shell.shell import Shell
from coordinator.shell.upload_refusal import UploadRefusal
from coordinator.views.alerts import Health
from coordinator.views.registry import ViewedRun
from rollcast.runtime.errors import RunOver
from rollcast.runtime.run_folder import RunFolder
from rollcast.web.assets import STATIC, Assets
from rollcast.wire.ids import RunId
from rollcast.wire.text.tokenizer import TextTokenizer

PAGES = Path(__file__).parents[1] / "pages"


@dataclass(frozen=True, slots=True)
class HttpParts:
    """The components of a coordinator that HTTP routes read and act on."""

    config: CoordinatorConfig
    folder: RunFolder
    run_id: RunId
    ledger: CompactingStore
    shell: Shell
    desk: JoinDesk
    invites: InviteIssuer
    metrics: CoordinatorMetrics
    refusal: UploadRefusal
    orders: Orders
    fleet_handle: FleetHandle
    tokenizer: TextTokenizer
    evaluations: Evaluations | None = None  # None: there are no problems to evaluate, as in a simulated fleet


async def http_app(coordinator: HttpParts, *, hosts: frozenset[str] | None, open_reading: bool) -> HttpApp:
    """Build the application with all routes, and load the access tokens.

    Args:
        hosts: names allowed in the Host header; None allows any name.
        open_reading: whether reading requires no token.

    Raises:
        StoreError, WaitTimedOut: the ledger cannot return the access tokens.
        RunFolderError: the operator's key can be neither read nor written.
    """
    ledger, shell, serve = coordinator.ledger, coordinator.shell, coordinator.config.serve
    tokens = TokenBook(ledger)
    await tokens.load()
    gate = Gate(operator_key(coordinator.folder.secrets), tokens, open_reading=open_reading)
    health = HealthRoutes(_views(coordinator), coordinator.desk, reading_is_open=open_reading)
    audit = AuditLog(ledger)
    previews = PreviewSolver(lambda: shell.core.preview_question(shell.clock()))
    orders = OrderRecorder(shell.apply, ledger, coordinator.orders)
    views = ViewRoutes(_viewed(coordinator), coordinator.folder)
    topics: list[Topic] = [*health.topics(), *views.topics()]
    hub = Hub(topics, gate)
    addresses = AddressStream(coordinator.desk, seen=lambda peer_id, host: shell.apply(SeenAt(peer_id, host)))
    routes: list[Route | RawRoute] = [
        *health.routes(),
        *views.routes(),
        *RolloutRoutes(coordinator.folder, coordinator.tokenizer).routes(),
        *TokenRoutes(tokens).routes(),
        *audit_routes(audit),
        *ActRoutes(shell.core, orders.give, previews, _fleet_limit(coordinator)).routes(),
        *RunControlRoutes(shell.core, orders.give, _usd_per_hour(coordinator)).routes(),
        *_evaluation_routes(coordinator),
        *ProfileRoutes(shell).routes(),
        *FleetRoutes(coordinator.fleet_handle).routes(),
        *InviteRoutes(coordinator.invites, ledger, InviteActs(shell.core, orders.give)).routes(),
        *Speed(coordinator.desk).routes(),
        *ObservedAddressRoutes(coordinator.desk, serve.host, serve.observe_port).routes(),
        *addresses.routes(),
        *SuitabilityRoutes(coordinator.desk, ledger, shell.core.state, shell.clock).routes(),
        hub.route(),
    ]
    routes.append(description_route(routes))
    assets = Assets.of({"/": PAGES, "/web/": STATIC})
    return HttpApp(
        routes,
        hub,
        gate,
        audit,
        assets,
        hosts,
        (views.sampling,),
        addresses,
        coordinator.run_id,
        run_over=lambda: run_over(shell.ended_because, for_good=shell.ended_for_good),
    )


def run_over(ended_because: str, *, for_good: bool) -> RunOver | None:
    """Return the error that refuses to change a run that has ended for this reason; None while the reason is empty."""
    if not ended_because:
        return None
    if for_good:
        fix = "read it with `rollcast report`, `samples`, `explain` and `why`, use its policy with `rollcast eval` and"
        return RunOver(
            "the run is over: nothing about it can be changed any more",
            cause=f"it ended: {ended_because}",
            fix=f"{fix} `export`, or start another run",
        )
    return RunOver(
        "this coordinator is ending: the run goes on once it is started again",
        cause=f"it ends: {ended_because}",
        fix="start the coordinator again, then repeat the command",
    )


def _evaluation_routes(coordinator: HttpParts) -> list[Route]:
    if coordinator.evaluations is None:
        return []
    return EvaluationRoutes(coordinator.shell, coordinator.evaluations, coordinator.config.run.seed).routes()


def _fleet_limit(coordinator: HttpParts) -> Callable[[], float | None]:
    """Return a function that reads the hourly limit for workers at providers in USD; None means no limit."""

    def limit() -> float | None:
        fleet = coordinator.fleet_handle.fleet
        return None if fleet is None else fleet.manager.budget.limits.usd_per_hour_max

    return limit


def _usd_per_hour(coordinator: HttpParts) -> Callable[[], float]:
    """Return a function that reads what the run's workers cost now, in US dollars an hour."""

    def read() -> float:
        core = coordinator.shell.core
        rented = coordinator.fleet_handle.spending(core.state.accounts.accepted)
        return float(core.activation_status().usd_per_hour if rented is None else rented["usd_per_hour"])

    return read


def _views(coordinator: HttpParts) -> HttpViews:
    shell = coordinator.shell
    return HttpViews(
        run_name=coordinator.config.run.name,
        run_id=coordinator.run_id,
        status=lambda: coordinator.fleet_handle.merged(shell.status()),
        not_ready_because=lambda: shell.ended_because,
        metrics=coordinator.metrics.render_in_turns,
    )


def _viewed(coordinator: HttpParts) -> ViewedRun:
    shell = coordinator.shell

    def spending() -> Mapping[str, Any] | None:
        return coordinator.fleet_handle.spending(shell.core.state.accounts.accepted)

    return ViewedRun(shell.core, shell.clock, time.time, spending, partial(_health, coordinator))


def _health(coordinator: HttpParts) -> Health:
    refusal = coordinator.refusal.now()
    return Health() if refusal is None else Health(refusal.why, refusal.fix)
