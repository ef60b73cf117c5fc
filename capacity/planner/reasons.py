"""Why each worker is on or off, in words with figures."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from capacity.model.workers import Worker
from capacity.planner.columns import Floats, Mask
from capacity.planner.programme import Programme

MB = 1e6
WORTH_NAMING_USD = 5e-5  # a smaller difference is printed as 0.0000


def reasons_of(programme: Programme, chosen: Mask, reduced: Floats, usd_per_hour: Floats, sent: Floats) -> list[str]:
    """One line per worker.

    Args:
        reduced: reduced costs, USD/h; how far its price is above what it would add.
        usd_per_hour: with egress, were it on.
        sent: copies of each version that it passes on.
    """
    columns = programme.columns
    why_not = _why_not(programme)
    lines = []
    for place, worker in enumerate(columns.workers):
        barred = why_not(place, worker)
        if chosen[place]:
            lines.append(_on(worker, programme.useful[place], usd_per_hour[place], reduced[place], sent[place]))
        elif worker.pin == "off":
            lines.append("off: the operator keeps it off")
        elif barred:
            lines.append(barred)
        else:
            lines.append(_off(programme.useful[place], usd_per_hour[place], reduced[place], programme.feeds[place]))
    return lines


def _on(worker: Worker, useful: float, usd: float, reduced: float, sent: float) -> str:
    passing = f" and passes on {sent:.1f} copies of each version" if sent >= 0.05 else ""
    gives = f"{useful:.3g} rollouts/s for {usd:.4g} $/h{passing}"
    if worker.pin == "on":
        return f"on: the operator keeps it on; {gives}"
    if reduced < -WORTH_NAMING_USD:
        return f"on: {gives}, {-reduced:.4f} $/h less than what it adds is worth"
    if reduced > WORTH_NAMING_USD:
        return f"on: {gives}, {reduced:.4f} $/h more than what it adds is worth, but workers are whole"
    return f"on: {gives}, the last to be needed"


def _off(useful: float, usd: float, reduced: float, feeds: float) -> str:
    gives = f"{useful:.3g} rollouts/s for {usd:.4g} $/h"
    copies = f", passes on {feeds:.1f} copies for the one it takes" if feeds < 0.95 else ""
    if reduced > WORTH_NAMING_USD:
        return f"off: {gives}{copies}: {reduced:.4f} $/h more than what it would add is worth"
    return f"off: {gives}{copies}: as good as the last that is on, and not needed any more"


def _why_not(programme: Programme) -> Callable[[int, Worker], str]:
    """Why a worker cannot be chosen at this split at all; empty if it can."""
    columns, split, demand = programme.columns, programme.split, programme.demand
    with np.errstate(invalid="ignore"):
        soonest = np.where(columns.speed_rate > 0, columns.speed_p90, np.inf).min(axis=1)[columns.kind]
    rho = programme.copy_bytes_per_second

    def why_not(place: int, worker: Worker) -> str:
        if programme.eligible[place]:
            return ""
        price = f"for {worker.usd_per_hour:.4g} $/h"
        if not np.isfinite(soonest[place]):
            return f"off: no speed of it is known, {price}"
        if soonest[place] > split.t_gen_s:
            versions = (soonest[place] - split.t_gen_s) / demand.t_train_s
            times = f"a rollout takes {soonest[place]:.0f} s, {split.t_gen_s:.0f} s fit"
            return f"off: {versions:.1f} versions slower {price} ({times})"
        if programme.useful[place] <= 0:
            return f"off: preemptions leave nothing of its work, {price}"
        return (
            f"off: its downlink of {worker.download_bytes_per_second / MB:.3g} MB/s is below the {rho / MB:.3g} MB/s "
            f"that a version within {split.t_bcast_s:.0f} s needs"
        )

    return why_not
