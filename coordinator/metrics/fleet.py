"""Report the workers that were started at providers, and the money that they cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from capacity.fleet.fleet import FleetManager
from capacity.fleet.state import WorkerView

WORKERS_SHOWN_MAX = 256


@dataclass(frozen=True, slots=True)
class ProviderSpending:
    """US dollars spent at one provider since the run began.

    ``forecast_usd``: cost of the workers wanted so far at their expected price.
    """

    provider: str
    machine_usd: float
    egress_usd: float
    forecast_usd: float


@dataclass(frozen=True, slots=True)
class SpendingStatus:
    """The money spent on workers that the coordinator started, without donated peers and the learner.

    Args:
        usd_per_hour: price of the machines that run now.
        committed_usd_per_hour: the same, including the most traffic that they can send.
        usd_per_accepted_rollout: spent / accepted; None before a rollout was accepted.
        held_back: workers that are wanted and not started, with the reason.
    """

    usd_per_hour: float
    committed_usd_per_hour: float
    usd_per_hour_max: float | None
    spent_usd: float
    usd_max: float | None
    usd_per_accepted_rollout: float | None
    providers: tuple[ProviderSpending, ...]
    workers: tuple[WorkerView, ...]
    held_back: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return plain dicts, lists, strings and numbers."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


def build_spending(manager: FleetManager, accepted: int) -> SpendingStatus:
    """Build the status from the fleet's manager."""
    budget, limits = manager.budget, manager.budget.limits
    return SpendingStatus(
        usd_per_hour=budget.usd_per_hour,
        committed_usd_per_hour=budget.committed_usd_per_hour,
        usd_per_hour_max=limits.usd_per_hour_max,
        spent_usd=budget.spent_usd,
        usd_max=limits.usd_max,
        usd_per_accepted_rollout=budget.spent_usd / accepted if accepted else None,
        providers=tuple(
            ProviderSpending(name, one.machine_usd, one.egress_usd, one.forecast_usd)
            for name, one in sorted(manager.spent().items())
        ),
        workers=manager.workers()[:WORKERS_SHOWN_MAX],
        held_back=dict(list(manager.held_back.items())[:WORKERS_SHOWN_MAX]),
    )


_GAUGES = (
    ("rollcast_spending_usd_per_hour", "Price per hour of the running machines at providers.", "usd_per_hour"),
    (
        "rollcast_spending_committed_usd_per_hour",
        "Price per hour of the running machines at providers, plus the most traffic that they can send.",
        "committed_usd_per_hour",
    ),
    (
        "rollcast_usd_per_accepted_rollout",
        "Money spent at providers, divided by accepted rollouts.",
        "usd_per_accepted_rollout",
    ),
    ("rollcast_spending_usd_max", "Limit on the total cost of workers at providers, in USD.", "usd_max"),
)


def families(spending: Mapping[str, Any] | None) -> Iterable[Metric]:
    """Return the metric families of the status's ``spending``; none if it is None."""
    if spending is None:
        return
    for name, text, key in _GAUGES:
        if spending[key] is not None:
            yield GaugeMetricFamily(name, text, value=spending[key])
    spent = CounterMetricFamily("rollcast_spent_usd", "Money spent at providers, in USD.", labels=["provider", "what"])
    for one in spending["providers"]:
        spent.add_metric([one["provider"], "machine"], one["machine_usd"])
        spent.add_metric([one["provider"], "egress"], one["egress_usd"])
    yield spent
    workers = GaugeMetricFamily(
        "rollcast_provider_workers", "Workers at providers, by phase.", labels=["provider", "phase"]
    )
    counts: dict[tuple[str, str], int] = {}
    for one in spending["workers"]:
        place = (one["provider"], one["phase"])
        counts[place] = counts.get(place, 0) + 1
    for (provider, phase), count in sorted(counts.items()):
        workers.add_metric([provider, phase], count)
    yield workers
