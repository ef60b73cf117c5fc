"""Measure plans for large pools: their seconds, their gap to the bound, and simpler rules on the same pools.

``seconds_max`` is the wall time of the slowest ``plan()``, the search over all splits of the staleness budget and a
written reason per worker included, ``cpu_seconds_max`` that of the processor. The gap is cost / bound of the linear
relaxation over all splits - 1. Each baseline gets the planner's split: ``..._feasible`` is the share of pools in which
its set satisfies every row, ``..._dearer_min`` the least by which it costs more than the plan there, as a share, and
``..._t_bcast_s_max`` the slowest broadcast of its sets. ``promised_cpu_seconds`` is processor time for the first pool
as `rollcast capacity plan` does it, slack and predictions included, with a learner of ``LEARNER_USD_PER_HOUR``.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from statistics import median

from bench.capacity.baselines import BASELINES, BaselineResult, judged
from bench.machine import Outcome
from bench.planner.capacity_pools import demand, pool
from capacity.model.demand import Demand
from capacity.model.workers import Worker
from capacity.planner.columns import columns_of
from capacity.planner.planner import PlanOptions, plan
from capacity.planner.plans import Plan
from capacity.planner.programme import programme_of
from capacity.questions.promise import promised

LEARNER_USD_PER_HOUR = 18.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=int, default=10_000)
    parser.add_argument("--pools", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rollouts-per-step", type=int, default=8192)
    parser.add_argument("--time-limit", type=float, default=PlanOptions().time_limit_s, help="of the solver, in s")


def run(arguments: argparse.Namespace) -> Outcome:
    wanted, options = demand(arguments.rollouts_per_step), PlanOptions(time_limit_s=arguments.time_limit)
    plans, baselines, cpu_s, workers_on = [], [], [], []
    for number in range(arguments.pools):
        workers = pool(arguments.workers, arguments.seed + number)
        started_s = time.process_time()
        made = plan(wanted, workers, options)
        cpu_s.append(time.process_time() - started_s)
        judgements = _baselines(wanted, workers, made)
        print(_line(number, made, judgements), file=sys.stderr)
        workers_on.append(len(made.chosen))
        # Millions of live objects would let Python's garbage collector stop a later plan for a second.
        plans.append(replace(made, candidates=()))
        baselines.append(judgements)
    figures = {
        "seconds_max": max(made.solve_s for made in plans),
        "seconds_median": median(made.solve_s for made in plans),
        "cpu_seconds_max": max(cpu_s),
        "gap_median": median(made.gap for made in plans),
        "gap_max": max(made.gap for made in plans),
        "feasible": sum(made.feasible for made in plans),
        "relay_binding": sum(_relay_binds(made) for made in plans),
        "workers_on_median": median(workers_on),
        "promised_cpu_seconds": _promised_cpu_s(wanted, pool(arguments.workers, arguments.seed), options),
        "allowed_t_bcast_s_min": min(made.split.t_bcast_s for made in plans),
    }
    for name in BASELINES:
        figures |= _compared(name, plans, [judgements[name] for judgements in baselines])
    settings = {
        "workers": arguments.workers,
        "pools": arguments.pools,
        "seed": arguments.seed,
        "rollouts_per_step": arguments.rollouts_per_step,
        "time_limit_s": arguments.time_limit,
    }
    return Outcome(settings, figures, missing=tuple(key for key in _keys() if key not in figures))


def _promised_cpu_s(wanted: Demand, workers: list[Worker], options: PlanOptions) -> float:
    started_s = time.process_time()
    promised(replace(wanted, learner_usd_per_hour=LEARNER_USD_PER_HOUR), workers, options)
    return time.process_time() - started_s


def _baselines(wanted: Demand, workers: list[Worker], made: Plan) -> dict[str, BaselineResult]:
    programme = programme_of(wanted, columns_of(wanted, workers), made.split)
    return {name: judged(name, programme) for name in BASELINES}


def _relay_binds(made: Plan) -> bool:
    return any(row.name == "relay" and row.shadow_usd_per_hour > 0 for row in made.rows)


def _compared(name: str, plans: list[Plan], results: list[BaselineResult]) -> dict[str, float]:
    held = [(made, result) for made, result in zip(plans, results, strict=True) if result.feasible]
    dearer = [result.usd_per_hour / made.usd_per_hour - 1.0 for made, result in held]
    figures = {
        f"{name}_feasible": len(held) / len(results),
        f"{name}_t_bcast_s_max": max(result.t_bcast_s for result in results),
        f"{name}_t_bcast_s_min": min(result.t_bcast_s for result in results),
    }
    return figures | ({f"{name}_dearer_min": min(dearer), f"{name}_dearer_median": median(dearer)} if dearer else {})


def _keys() -> list[str]:
    return [f"{name}_dearer_{kind}" for name in BASELINES for kind in ("min", "median")]


def _line(number: int, made: Plan, judgements: dict[str, BaselineResult]) -> str:
    found = ", ".join(
        f"{name} {result.usd_per_hour:.1f} $/h in {result.t_bcast_s:.0f} s"
        + ("" if result.feasible else " (infeasible)")
        for name, result in judgements.items()
    )
    return (
        f"pool {number}: {made.solve_s:.2f} s, {len(made.chosen)} on, {made.usd_per_hour:.2f} $/h, gap {made.gap:.4%}, "
        f"T_bcast {made.t_bcast_s:.0f} of {made.split.t_bcast_s:.0f} s; {found}"
    )
