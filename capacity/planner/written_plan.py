"""Write the plan of a solved split: its rows, its prices, and in words why each worker is on or off."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from capacity.model.broadcast_bound import broadcast_seconds
from capacity.model.demand import Demand
from capacity.model.egress import Copies
from capacity.model.staleness import staleness_needed
from capacity.model.units import bandwidth
from capacity.model.useful_rate import IN_TIME_SHARES
from capacity.model.workers import Speed, Worker
from capacity.planner.columns import Columns, Floats, Mask
from capacity.planner.linear import Relaxation
from capacity.planner.max_rate import Reach
from capacity.planner.plans import Candidate, Infeasible, Plan, Row, Split
from capacity.planner.programme import Programme, origin_feeds
from capacity.planner.totals import copies_sent, egress_of, marginal_usd_per_gb

WORTH_NAMING_USD = 5e-5  # a smaller difference is printed as 0.0000


def reasons_of(programme: Programme, chosen: Mask, reduced: Floats, usd_per_hour: Floats, sent: Floats) -> list[str]:
    """Return one line per worker: why it is on or off.

    Args:
        reduced: reduced costs, USD/h: by how much a worker's price exceeds its value to the set.
        usd_per_hour: cost with egress, if it were on.
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
            lines.append("off: pinned by the operator")
        elif barred:
            lines.append(barred)
        else:
            lines.append(_off(programme.useful[place], usd_per_hour[place], reduced[place], programme.feeds[place]))
    return lines


def _on(worker: Worker, useful: float, usd: float, reduced: float, sent: float) -> str:
    passing = f" and passes on {sent:.1f} copies of each version" if sent >= 0.05 else ""
    gives = f"{rate_text(useful)} for {usd:.4g} $/h{passing}"
    if worker.pin == "on":
        return f"on: pinned by the operator; {gives}"
    if reduced < -WORTH_NAMING_USD:
        return f"on: {gives}, {-reduced:.4f} $/h less than its value"
    if reduced > WORTH_NAMING_USD:
        return f"on: {gives}, {reduced:.4f} $/h more than its value, but only whole workers can be on"
    return f"on: {gives}, the last one needed"


def _off(useful: float, usd: float, reduced: float, feeds: float) -> str:
    gives = f"{rate_text(useful)} for {usd:.4g} $/h"
    copies = f", passes on {feeds:.1f} copies for the one it takes" if feeds < 0.95 else ""
    if reduced > WORTH_NAMING_USD:
        return f"off: {gives}{copies}: {reduced:.4f} $/h more than its value"
    return f"off: {gives}{copies}: as good as the last one that is on, but not needed"


def rate_text(per_second: float) -> str:
    """Return a rate with three significant digits or all of its whole ones, without an exponent."""
    return f"{per_second:,.0f} rollouts/s" if per_second >= 999.5 else f"{per_second:.3g} rollouts/s"


def _why_not(programme: Programme) -> Callable[[int, Worker], str]:
    """Return why a worker cannot be chosen at this split at all; empty if it can."""
    columns, split, demand = programme.columns, programme.split, programme.demand
    with np.errstate(invalid="ignore"):
        soonest = np.where(columns.option_rate > 0, columns.option_s, np.inf).min(axis=1)[columns.kind]
    rho = programme.copy_bytes_per_second

    def why_not(place: int, worker: Worker) -> str:
        if programme.eligible[place]:
            return ""
        price = f"for {worker.usd_per_hour:.4g} $/h"
        if not np.isfinite(soonest[place]):
            return f"off: its speed is not known, {price}"
        if soonest[place] > split.t_gen_s:
            steps = (soonest[place] - split.t_gen_s) / demand.t_train_s
            unit = "group" if demand.conduct.samples_per_group > 1 else "rollout"
            times = f"a {unit} takes {soonest[place]:.0f} s; {split.t_gen_s:.0f} s fit"
            return f"off: {steps:.1f} learner steps too slow, {price} ({times})"
        if programme.useful[place] <= 0:
            return f"off: preemptions leave none of its work, {price}"
        return (
            f"off: its downlink of {bandwidth(worker.download_bytes_per_second, 3)} is below the {bandwidth(rho, 3)} "
            f"that a version within {split.t_bcast_s:.0f} s needs"
        )

    return why_not


ROUNDING = 1e-9  # relative: a set exactly at its time limit is not over it


def written_plan(relaxation: Relaxation, chosen: Mask, usd_per_hour: float, lp_bound: float) -> Plan:
    """Return the plan of a feasible set; the caller fills in the time of solving and the integer bound.

    Args:
        usd_per_hour: of the set as the programme counts it, incumbents discounted.
        lp_bound: USD/h below which no set costs at any split, incumbents discounted.
    """
    programme, columns = relaxation.programme, relaxation.programme.columns
    demand = programme.demand
    copies = copies_sent(programme, chosen)
    egress = egress_of(programme, copies)
    t_bcast_s = _t_bcast_s(programme, chosen, copies.receivers)
    t_gen_s = _t_gen_p90_s(programme, chosen)
    rate = float(programme.useful[chosen].sum())
    needed = programme.rate_needed or 0.0
    workers_usd, egress_usd = float(columns.price[chosen].sum()), egress.usd_per_hour
    return Plan(
        demand=demand,
        candidates=_candidates(relaxation, chosen, copies, egress.workers_usd_per_hour),
        rows=rows_of(relaxation, chosen, copies, workers_usd + egress_usd),
        split=programme.split,
        rate_rollouts_per_second=rate,
        rate_needed_rollouts_per_second=needed,
        t_bcast_s=t_bcast_s,
        t_gen_p90_s=t_gen_s,
        staleness_needed=staleness_needed(
            t_bcast_s=t_bcast_s * (1 - ROUNDING),
            t_gen_p90_s=(t_gen_s + demand.fixed_s) * (1 - ROUNDING),
            t_train_s=demand.t_train_s,
            publish_every_steps=demand.publish_every_steps,
        ),
        workers_usd_per_hour=workers_usd,
        egress_usd_per_hour=egress_usd,
        lp_bound_usd_per_hour=lp_bound,
        gap=max(0.0, usd_per_hour / lp_bound - 1.0) if lp_bound > 0 else 0.0,
        utilisation=min(1.0, rate / needed) if needed > 0 else 1.0,
        solve_s=0.0,
    )


def _t_bcast_s(programme: Programme, chosen: Mask, sent: Floats) -> float:
    demand, columns = programme.demand, programme.columns
    uploads = np.where(sent > 0, columns.upload, 0.0)[chosen]
    source = demand.learner_upload_bytes_per_second
    return broadcast_seconds(demand.update_bytes, source, uploads, columns.download[chosen], demand.topology)


def _t_gen_p90_s(programme: Programme, chosen: Mask) -> float:
    columns = programme.columns
    return float(columns.option_s[columns.kind, programme.option][chosen].max(initial=0.0))


def _candidates(relaxation: Relaxation, chosen: Mask, copies: Copies, egress: Floats) -> tuple[Candidate, ...]:
    programme, columns = relaxation.programme, relaxation.programme.columns
    would_send = programme.feeds * (columns.egress_usd_per_gb < marginal_usd_per_gb(programme, copies))
    would_cost = egress_of(programme, Copies(0.0, would_send)).workers_usd_per_hour
    usd = columns.price + np.where(chosen, egress, would_cost)
    reasons = reasons_of(programme, chosen, relaxation.reduced, usd, copies.receivers)
    fields = zip(
        columns.workers,
        chosen.tolist(),
        programme.option.tolist(),
        usd.tolist(),
        programme.useful.tolist(),
        relaxation.reduced.tolist(),
        reasons,
        copies.receivers.tolist(),
        (~programme.eligible).tolist(),
        strict=True,
    )
    return tuple(
        Candidate(
            worker,
            on,
            _speed(worker, option),
            price,
            useful,
            reduced,
            reason,
            copies,
            barred,
        )
        for worker, on, option, price, useful, reduced, reason, copies, barred in fields
    )


def _speed(worker: Worker, option: int) -> Speed | None:
    return worker.speeds[option // len(IN_TIME_SHARES)] if option >= 0 else None


def rows_of(relaxation: Relaxation, chosen: Mask, copies: Copies, usd_per_hour: float) -> tuple[Row, ...]:
    """Return every row of the programme at the chosen set."""
    programme, duals = relaxation.programme, relaxation.duals
    demand, columns = programme.demand, programme.columns
    rate = float(programme.useful[chosen].sum())
    rows = [Row("rate", "", "rollouts/s", rate, programme.rate_bought, True, duals.get(("rate", ""), 0.0))]
    if demand.update_bytes > 0:
        rows += _relay_rows(relaxation, chosen, copies)
    if demand.chance_z > 0:
        deviation = programme.deviation(chosen.astype(np.float64))
        value, shadow = rate - demand.chance_z * deviation, duals.get(("chance", ""), 0.0)
        rows.append(Row("chance", "", "rollouts/s", value, programme.rate_bought, True, shadow))
    if demand.share_without_a_region > 0:
        left = demand.share_without_a_region * (programme.rate_needed or 0.0)
        for number, region in enumerate(columns.regions):
            without = float(programme.useful[chosen & (columns.region != number)].sum())
            shadow = duals.get(("region", region), 0.0)
            rows.append(Row("region", region, "rollouts/s", without, left, True, shadow))
    if demand.usd_per_hour_max is not None:
        rows.append(Row("budget", "", "USD/h", usd_per_hour, demand.usd_per_hour_max, False, 0.0))
    return tuple(rows)


def _relay_rows(relaxation: Relaxation, chosen: Mask, copies: Copies) -> list[Row]:
    """Return the relay row; it counts the uplinks of the senders, the cheapest that suffice."""
    programme = relaxation.programme
    rho, uplink = programme.copy_bytes_per_second, programme.demand.learner_upload_bytes_per_second
    taken = (float(chosen.sum()) - float(programme.feeds[copies.receivers > 0].sum())) * rho
    slowest = float(programme.columns.download[chosen].min(initial=np.inf))
    shadow = relaxation.duals.get(("relay", ""), 0.0) / rho
    from_origin = origin_feeds(programme.demand, programme.split.t_bcast_s) * rho
    return [
        Row("relay", "", "bytes/s", taken, from_origin, False, shadow),
        Row("learner_uplink", "", "bytes/s", uplink, rho, True, 0.0),
        Row("downlink", "", "bytes/s", slowest, rho, True, 0.0),
    ]


def refused_plan(demand: Demand, columns: Columns, reach: Reach | None, why: Infeasible) -> Plan:
    """Return the plan that chooses no worker.

    Args:
        reach: what the pool can give at the split that comes closest; None where no rollout is young enough.
    """
    programme = reach.programme if reach is not None else None
    split = programme.split if programme is not None else Split(0.0, max(0.0, demand.budget_s))
    rate = reach.rate if reach is not None else 0.0
    needed = demand.rollouts_per_step / demand.t_train_s
    bought = demand.headroom * needed
    if programme is not None and programme.rate_needed is not None:
        needed, bought = programme.rate_needed, programme.rate_bought
    reason = f"off: no set is feasible: {why.what}"
    return Plan(
        demand=demand,
        candidates=tuple(
            Candidate(worker, False, None, worker.usd_per_hour, 0.0, 0.0, reason) for worker in columns.workers
        ),
        rows=(Row("rate", "", "rollouts/s", rate, bought, True, 0.0),),
        split=split,
        rate_rollouts_per_second=0.0,
        rate_needed_rollouts_per_second=needed,
        t_bcast_s=0.0,
        t_gen_p90_s=0.0,
        staleness_needed=0,
        workers_usd_per_hour=0.0,
        egress_usd_per_hour=0.0,
        lp_bound_usd_per_hour=0.0,
        gap=0.0,
        utilisation=0.0,
        solve_s=0.0,
        infeasible=why,
    )
