"""Compute what a change of each knob does to the least cost, by the bound over all splits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from capacity.model.demand import Demand, with_link
from capacity.model.units import bandwidth
from capacity.model.workers import Worker
from capacity.planner.columns import Columns, columns_of
from capacity.planner.planner import DEFAULTS, PlanOptions, lowest_bound
from capacity.planner.remedies import TOPOLOGIES, Knob


@dataclass(frozen=True, slots=True)
class KnobEffect:
    """The effect of one change on the least cost.

    Args:
        change: in words: "4 -> 5".
        usd_per_hour: the bound after the change; inf where no set remains feasible.
        saves_usd_per_hour: less than before; negative where it costs, inf where there was no set before.
    """

    knob: Knob
    change: str
    usd_per_hour: float
    saves_usd_per_hour: float


def single_changes(
    demand: Demand,
    workers: Sequence[Worker],
    options: PlanOptions = DEFAULTS,
) -> tuple[KnobEffect, ...]:
    """Return each knob's change, the most helpful first; changes without a feasible set come last."""
    columns = columns_of(demand, workers)
    now = lowest_bound(demand, columns, options)
    effects = [
        KnobEffect(knob, change, after, now - after)
        for knob, change, changed, pool in _turned(demand, columns)
        for after in (lowest_bound(changed, pool, options),)
    ]
    return tuple(sorted(effects, key=lambda effect: effect.usd_per_hour))


def _turned(demand: Demand, columns: Columns) -> Iterator[tuple[Knob, str, Demand, Columns]]:
    limit, kappa, uplink = demand.staleness_limit, demand.publish_every_steps, demand.learner_upload_bytes_per_second
    for steps in (limit - 1, limit + 1):
        if steps > kappa:
            yield "S", f"{limit} -> {steps}", replace(demand, staleness_limit=steps), columns
    for steps in (kappa - 1, kappa + 1):
        if 0 < steps < limit:
            yield "kappa", f"{kappa} -> {steps}", replace(demand, publish_every_steps=steps), columns
    for factor, word in ((2.0, "doubled"), (0.5, "halved")):
        change = f"{word} to {bandwidth(uplink * factor)}"
        yield "uplink", change, with_link(demand, learner_upload_bytes_per_second=uplink * factor), columns
    for topology in TOPOLOGIES:
        if str(topology) != str(demand.topology):
            yield "topology", f"{demand.topology} -> {topology}", replace(demand, topology=topology), columns
    if demand.update_bytes > 0:
        change = f"half the bytes, {demand.update_bytes / 2e6:.4g} MB a version"
        yield "deltas", change, with_link(demand, update_bytes=demand.update_bytes / 2), columns
    if len(columns):
        place = _cheapest_by_rate(columns)
        change = f"ten more like {columns.workers[place].worker_id}"
        yield "workers", change, demand, columns.with_copies(place, 10)


def _cheapest_by_rate(columns: Columns) -> int:
    rate = columns.option_rate.max(axis=1)[columns.kind] * columns.kept
    return int((rate / (columns.price + 1e-9)).argmax())
