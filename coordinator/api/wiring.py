"""All of the HTTP side of a coordinator, put together."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.api.address_stream import Watching
from coordinator.api.invites import InviteRoutes
from coordinator.api.observed_address import Seeing
from coordinator.api.operator import ActRoutes
from coordinator.api.speed_test import Speed
from coordinator.api.suitability import WorthDesk
from coordinator.api.views import Reads
from coordinator.config.config import CoordinatorConfig
from coordinator.core.events.reach_events import SeenAt
from coordinator.fleet.setup import Providing
from coordinator.http.app import HttpApp
from coordinator.http.audit import AuditLog, audit_routes
from coordinator.http.auth import Gate
from coordinator.http.health import HttpViews, Standing
from coordinator.http.openapi import description_route
from coordinator.http.routes import RawRoute, Route, Topic
from coordinator.http.stream import Hub
from coordinator.http.tokens import TokenBook, TokenRoutes, operator_key
from coordinator.join import Inviting, JoinDesk
from coordinator.ledger.disk_guard import DiskGuard
from coordinator.ledger.saved_orders import OrderKeeping, Orders
from coordinator.ledger.sqlite import Ledger
from coordinator.metrics.metrics import CoordinatorMetrics
from coordinator.shell.preview_solver import Previewing
from coordinator.shell.shell import Shell
from coordinator.views.alerts import Health
from coordinator.views.registry import ViewedRun
from rollcast.runtime.run_folder import RunFolder
from rollcast.web.assets import STATIC, Assets
from rollcast.wire.ids import RunId

PAGES = Path(__file__).parents[1] / "pages"


@dataclass(frozen=True, slots=True)
class HttpParts:
    """The components of a coordinator that its HTTP side reads and acts on."""

    config: CoordinatorConfig
    folder: RunFolder
    run_id: RunId
    ledger: Ledger
    shell: Shell
    desk: JoinDesk
    inviting: Inviting
    metrics: CoordinatorMetrics
    disk: DiskGuard
    orders: Orders
    providing: Providing


async def http_app(coordinator: HttpParts, *, hosts: frozenset[str] | None, open_reading: bool) -> HttpApp:
    """Args:
        hosts: names allowed in the Host header; None allows any.
        open_reading: whoever reaches us may read without a token.

    Raises:
        StoreError, WaitTimedOut: the ledger does not tell its tokens.
        RunFolderError: the operator's key can be neither read nor written.
    """
    ledger, shell = coordinator.ledger, coordinator.shell
    tokens = TokenBook(ledger)
    await tokens.load()
    gate = Gate(operator_key(coordinator.folder.secrets), tokens, open_reading=open_reading)
    standing = Standing(_views(coordinator), coordinator.desk, reading_is_open=open_reading)
    audit = AuditLog(ledger)
    previews = Previewing(lambda: shell.core.preview_question(shell.clock()))
    keeping = OrderKeeping(shell.apply, ledger, coordinator.orders)
    reads = Reads(_viewed(coordinator), coordinator.folder)
    topics: list[Topic] = [*standing.topics(), *reads.topics()]
    hub = Hub(topics, gate)
    watching = Watching(coordinator.desk, seen=lambda peer_id, host: shell.apply(SeenAt(peer_id, host)))
    routes: list[Route | RawRoute] = [
        *standing.routes(),
        *reads.routes(),
        *TokenRoutes(tokens).routes(),
        *audit_routes(audit),
        *ActRoutes(shell.core, keeping.give, previews, _fleet_limit(coordinator)).routes(),
        *InviteRoutes(coordinator.inviting, ledger).routes(),
        *Speed(coordinator.desk).routes(),
        *Seeing(coordinator.desk, coordinator.config.serve.host, coordinator.config.serve.observe_port).routes(),
        *watching.routes(),
        *WorthDesk(coordinator.desk, ledger, shell.core.state, shell.clock).routes(),
        hub.route(),
    ]
    routes.append(description_route(routes))
    assets = Assets.of({"/": PAGES, "/web/": STATIC})
    return HttpApp(routes, hub, gate, audit, assets, hosts, (reads.sampling,), watching)


def _fleet_limit(coordinator: HttpParts) -> Callable[[], float | None]:
    """What workers at providers may cost in an hour now."""

    def limit() -> float | None:
        fleet = coordinator.providing.fleet
        return None if fleet is None else fleet.manager.budget.limits.usd_per_hour_max

    return limit


def _views(coordinator: HttpParts) -> HttpViews:
    shell = coordinator.shell
    return HttpViews(
        run_name=coordinator.config.run.name,
        run_id=coordinator.run_id,
        status=lambda: coordinator.providing.merged(shell.status()),
        not_ready_because=lambda: shell.ended_because,
        metrics=coordinator.metrics.render,
    )


def _viewed(coordinator: HttpParts) -> ViewedRun:
    shell, disk, loop_lag = coordinator.shell, coordinator.disk, coordinator.metrics.loop_lag
    folder = coordinator.folder.root

    def health() -> Health:
        if disk.refusing:
            return Health(f"the disk of {folder} is almost full")
        return Health("this coordinator is too busy" if loop_lag.sheds else "")

    def spending() -> Mapping[str, Any] | None:
        accepted = shell.core.state.accounts.accepted
        found: Mapping[str, Any] | None = coordinator.providing.merged({"rollouts": {"accepted": accepted}})["spending"]
        return found

    return ViewedRun(shell.core, shell.clock, time.time, spending, health)
