"""Build the Capacity page: the plan in force, each worker's state, reason, price and rate, and recent decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coordinator.core.activation.pool import measured_slots_per_s
from coordinator.core.activation.status import ActivationStatus
from coordinator.core.decisions.state import CoreState
from coordinator.core.members.membership import Member
from coordinator.core.status.turns import Turns, slices
from coordinator.views.event_rows import EventView
from coordinator.views.workers import KnownMembers

#: Kinds of events that are decisions about which workers are on.
DECISIONS = (
    "activated",
    "standby",
    "drained",
    "banned",
    "enabled",
    "pinned",
    "priced",
    "staleness_limit",
    "publish_every_steps",
    "budget",
    "activation_planned",
    "activation_failed",
)
DECISIONS_SHOWN = 50


@dataclass(frozen=True, slots=True)
class CapacityWorker:
    """One worker as the capacity model sees it.

    ``reason`` is why it is on or off, in mode advise what the model would do. ``rollouts_per_s`` is the measured
    rate, None before its first rollout. ``usd_per_hour`` is None while the run knows no price of any worker.
    """

    peer_id: str
    name: str
    on: bool
    pin: str
    reason: str
    usd_per_hour: float | None
    rollouts_per_s: float | None
    hardware: str
    region: str


@dataclass(frozen=True, slots=True)
class CapacityView:
    """The data of the Capacity page. ``providers`` and ``spending`` are None if no worker is rented.

    ``has_prices`` is False while no worker has a price, so that no cost is known. ``decisions`` are newest first.
    """

    mode: str
    activation: ActivationStatus
    has_prices: bool
    workers: tuple[CapacityWorker, ...]
    providers: tuple[dict[str, Any], ...] | None
    spending: dict[str, Any] | None
    decisions: tuple[EventView, ...]
    at_unix_s: float


def build_capacity(
    state: CoreState,
    activation: ActivationStatus,
    known: KnownMembers,
    spending: Mapping[str, Any] | None,
    decisions: tuple[EventView, ...],
    *,
    now: float,
    unix_s: float,
) -> Turns[CapacityView]:
    """Return the view of the core's state, in turns.

    ``decisions`` come from the ledger, ``now`` is the core's clock.
    """
    has_prices = bool(state.prices) or spending is not None
    workers: list[CapacityWorker] = []
    for some in slices([one for one in state.members if one.role == "peer"]):
        workers += [_worker(state, known, one, has_prices, now) for one in some]
        yield
    return CapacityView(
        mode=activation.mode,
        activation=activation,
        has_prices=has_prices,
        workers=tuple(workers),
        providers=None if spending is None else tuple(dict(one) for one in spending["providers"]),
        spending=None if spending is None else dict(spending),
        decisions=decisions,
        at_unix_s=round(unix_s, 3),
    )


def _worker(state: CoreState, known: KnownMembers, member: Member, has_prices: bool, now: float) -> CapacityWorker:
    reputation = member.reputation
    return CapacityWorker(
        peer_id=member.peer_id,
        name=member.name,
        on=reputation.is_on,
        pin=reputation.pin,
        reason=reputation.kept_out or reputation.switched_off or reputation.switched,
        usd_per_hour=known.usd_per_hour(state, member) if has_prices else None,
        rollouts_per_s=round(measured_slots_per_s(state, member, now), 4) or None,
        hardware=member.hardware,
        region=member.region,
    )
