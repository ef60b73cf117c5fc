"""Compare re-planning with simple rules: dollars for each hour that the learner trains, the learner included.

Three markets: AWS (p3 and g4dn) and Google Cloud (V100 and A100), whose zones follow recorded numbers of spot machines,
each zone from another hour on; and zones sampled with the preemption rates and correlations of docs/activation.md.
Prices are a model, since the records have none: each zone's is the hardware's of the catalogue times 0.8 to 1.2, and
walks. On-demand machines at the catalogue's prices are always there. A started machine is paid at once and generates
later; measured speeds are noisy; nothing is known of the future, and a zone's preemptions only as they happen.

The constants of capacity/replan were chosen on other seeds than those of the default (--first-seed).
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean, median

from bench.capacity.trace_availability import spot_instances
from bench.machine import Outcome
from bench.replan.availability import (
    PREEMPTIONS_PER_HOUR,
    Change,
    Pool,
    Prices,
    Zone,
    average,
    drawn,
    recorded,
    shifted,
)
from bench.replan.baselines import Fallback, Greedy, OnDemand, SpotOnly, Sticky
from capacity.catalogue.prices import gpu_prices
from capacity.model.demand import Demand
from capacity.model.workers import Worker
from capacity.replan.events import DemandSeen, ReplanSettings
from capacity.replan.replanning import Replanner
from capacity.replan.replaying import Policy, PoolEvent, Replay, Replayed

RECORDS: Mapping[str, tuple[str, ...]] = {"aws": ("p3", "g4dn"), "gcp": ("gcp-v100", "gcp-a100"), "sampled": ()}
_ZONES = 4
_MACHINES_PER_ZONE = 16
_STEP_S = 60.0
_HEADROOM = 1.1  # of every rule that does not choose its own
_STATED_PER_HOUR = 0.5  # preemptions that a policy is told of every spot market at first
_ROLLOUTS_PER_SECOND = {"h100-sxm": 3.02, "a100-sxm": 1.411, "rtx-4090": 0.729}  # Qwen3-4B, `rollcast capacity offers`
_LEARNER_USD_PER_HOUR = 8 * 2.29  # eight H100 SXM on demand
_SOLVE_LIMIT_S = 0.02  # for the search: equal machines leave little to find, and the figures do not depend on the load


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """One kind of run, and the machines that it may rent.

    Args:
        hardware: of each zone.
        learner_usd_per_hour: price of the learner's machines.
        share: rate needed / rate that the spot machines present could make on average.
        price_sigma: standard deviation of the logarithm of a zone's price.
        start_s: seconds from a machine's start to its first rollouts.
    """

    hardware: tuple[str, ...] = ("a100-sxm",) * _ZONES
    learner_usd_per_hour: float = _LEARNER_USD_PER_HOUR
    share: float = 0.5
    price_sigma: float = 0.15
    start_s: float = 180.0


FLEETS: Mapping[str, Fleet] = {
    "alike": Fleet(),
    "mixed": Fleet(hardware=("h100-sxm", "a100-sxm", "rtx-4090", "a100-sxm")),
    "small_learner": Fleet(learner_usd_per_hour=2.29),
    "scarce": Fleet(share=0.8),
    "slow_start": Fleet(start_s=600.0),
    "volatile": Fleet(price_sigma=0.3),
}


@dataclass(frozen=True, slots=True)
class Market:
    """The changes of one seed: every policy meets the same ones."""

    zones: tuple[Zone, ...]
    changes: tuple[Change, ...]
    seconds: float
    rate_needed: float

    def events(self, fleet: Fleet, seed: int) -> Iterator[tuple[float, PoolEvent]]:
        """Return the market's events, on-demand machines first; the same ones in each call."""
        random = Random(seed)
        prices = Prices(sigma=fleet.price_sigma)
        rented = _on_demand(fleet)
        number = math.ceil(1.6 * self.rate_needed / rented.rollouts_per_second)
        pool = Pool((*self.zones, rented), prices, self.seconds, random, fleet.start_s)
        yield 0.0, DemandSeen(_demand(fleet, self.rate_needed))
        for one in range(number):
            yield 0.0, pool.seen(f"{rented.name}-{one}", rented, 0.0)
        yield from pool.follow(iter(self.changes))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=2, help="markets of each kind, for each fleet")
    parser.add_argument("--first-seed", type=int, default=0, help="10 to 12 chose the constants")
    parser.add_argument("--hours", type=float, default=8.0, help="length of each market, at most its record's")
    parser.add_argument("--fleets", nargs="*", default=list(FLEETS), choices=list(FLEETS))
    parser.add_argument("--markets", nargs="*", default=list(RECORDS), choices=list(RECORDS))


def run(arguments: argparse.Namespace) -> Outcome:
    began_s = time.process_time()
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    results: dict[tuple[str, str, int], dict[str, Replayed]] = {}
    keys = [(name, kind, seed) for name in arguments.markets for kind in arguments.fleets for seed in seeds]
    for number, (name, kind, seed) in enumerate(keys, 1):
        market = market_of(name, FLEETS[kind], seed, arguments.hours * 3600.0)
        results[name, kind, seed] = compared = _compared(market, FLEETS[kind], seed)
        line = f"{number} of {len(keys)}: {name}, {kind}, seed {seed}: {_ratio(compared):.4f}"
        print(f"{line}, {time.process_time() - began_s:.0f} CPU s so far", file=sys.stderr, flush=True)
    figures = _figures(results)
    figures["cpu_s"] = time.process_time() - began_s
    return Outcome({name: getattr(arguments, name) for name in ("seeds", "first_seed", "hours")}, figures)


def market_of(name: str, fleet: Fleet, seed: int, seconds: float) -> Market:
    """Return the market of a name and a seed; zones that follow records begin at a random hour of theirs."""
    random = Random(f"{name} {seed}")
    zones = tuple(_zone(number, hardware, random) for number, hardware in enumerate(fleet.hardware))
    records = [spot_instances(one) for one in RECORDS[name]]
    if not records:
        changes = list(drawn(zones, _MACHINES_PER_ZONE * len(zones), seconds, random))
    else:
        seconds = min(seconds, *(record[-1][0] for record in records))
        followed = []
        for number, zone in enumerate(zones):
            record = records[number % len(records)]
            followed.append((zone, shifted(record, random.random() * record[-1][0], _MACHINES_PER_ZONE)))
        changes = [change for change in recorded(followed, random) if change[0] < seconds]
    return Market(zones, tuple(changes), seconds, fleet.share * average(changes, seconds))


def _zone(number: int, hardware: str, random: Random) -> Zone:
    low, high = PREEMPTIONS_PER_HOUR
    return Zone(
        name=f"z{number}",
        region=f"r{number // 2}",
        usd_per_hour=_usd_per_hour(hardware, spot=True) * random.uniform(0.8, 1.2),
        rollouts_per_second=_ROLLOUTS_PER_SECOND[hardware],
        preemptions_per_hour=low * (high / low) ** random.random(),
        hardware=hardware,
        stated_per_hour=_STATED_PER_HOUR,
    )


def _on_demand(fleet: Fleet) -> Zone:
    """Return the on-demand machines of the fleet's hardware with the cheapest rollouts."""
    offered = [one for one in sorted(set(fleet.hardware)) if one != "rtx-4090"]  # a marketplace has no such price
    hardware = min(offered, key=lambda one: _usd_per_hour(one, spot=False) / _ROLLOUTS_PER_SECOND[one])
    return Zone(
        name="rented",
        region="rented",
        usd_per_hour=_usd_per_hour(hardware, spot=False),
        rollouts_per_second=_ROLLOUTS_PER_SECOND[hardware],
        preemptions_per_hour=0.0,
        hardware=hardware,
        spot=False,
    )


def _usd_per_hour(hardware: str, *, spot: bool) -> float:
    kinds = ("spot", "marketplace") if spot else ("on-demand",)
    return next(
        one.usd_per_hour
        for one in gpu_prices()
        if one.hardware == hardware and one.kind in kinds and one.provider in ("verda", "vast")
    )


def _demand(fleet: Fleet, rate_needed: float) -> Demand:
    return Demand(
        rollouts_per_step=max(1, round(rate_needed * _STEP_S)),
        t_train_s=_STEP_S,
        staleness_limit=6,
        update_bytes=1e9,
        learner_upload_bytes_per_second=1.25e9,
        headroom=_HEADROOM,
        learner_usd_per_hour=fleet.learner_usd_per_hour,
    )


def policies(start_s: float) -> dict[str, Policy]:
    """Return re-planning under the key ``ours``, and what it is compared with."""
    return {
        "ours": Replanner(ReplanSettings(start_s=start_s, time_limit_s=_SOLVE_LIMIT_S)),
        "on_demand": OnDemand(start_s),
        "sticky": Sticky(start_s),
        "greedy": Greedy(start_s),
        "spot_1_5": SpotOnly(start_s, 1.5),
        "fallback": Fallback(start_s),
    }


def _compared(market: Market, fleet: Fleet, seed: int) -> dict[str, Replayed]:
    return {
        name: Replay(policy, start_s=fleet.start_s, rate_of=_rate_of).run(market.events(fleet, seed), market.seconds)
        for name, policy in policies(fleet.start_s).items()
    }


def _rate_of(worker: Worker) -> float:
    return _ROLLOUTS_PER_SECOND[worker.hardware]


def _figures(results: Mapping[tuple[str, str, int], Mapping[str, Replayed]]) -> dict[str, float]:
    ratios = {key: _ratio(by_policy) for key, by_policy in results.items()}
    bests = [_best_rule(by_policy) for by_policy in results.values()]
    gains = [
        by_policy["ours"].utilisation - best.utilisation
        for by_policy, best in zip(results.values(), bests, strict=True)
    ]
    figures = {
        "usd_per_useful_hour_ratio_median": median(ratios.values()),
        "usd_per_useful_hour_ratio_max": max(ratios.values()),
        "markets": len(ratios),
        "markets_above_best_rule": sum(ratio > 1.0 for ratio in ratios.values()),
        "utilisation_gain_median": median(gains),
        "utilisation_gain_least": min(gains),
        "starts_per_hour_best": fmean(one.starts_per_h for one in bests),
    }
    for name in next(iter(results.values())):
        of_policy = [by_policy[name] for by_policy in results.values()]
        suffix = "" if name == "ours" else f"_{name}"
        figures[f"usd_per_useful_hour{suffix}"] = fmean(one.usd_per_useful_h for one in of_policy)
        figures[f"utilisation{suffix}"] = fmean(one.utilisation for one in of_policy)
        figures[f"starts_per_hour{suffix}"] = fmean(one.starts_per_h for one in of_policy)
    for market, fleet in dict.fromkeys((market, fleet) for market, fleet, _ in results):
        figures[f"ratio_{market}_{fleet}"] = fmean(_of(ratios, market, fleet))
    return figures


def _best_rule(by_policy: Mapping[str, Replayed]) -> Replayed:
    return min((one for name, one in by_policy.items() if name != "ours"), key=lambda one: one.usd_per_useful_h)


def _ratio(by_policy: Mapping[str, Replayed]) -> float:
    """Return $/useful hour of re-planning / of the best rule in hindsight."""
    return by_policy["ours"].usd_per_useful_h / _best_rule(by_policy).usd_per_useful_h


def _of(ratios: Mapping[tuple[str, str, int], float], market: str, fleet: str) -> Sequence[float]:
    return [ratio for (of_market, of_fleet, _), ratio in ratios.items() if (of_market, of_fleet) == (market, fleet)]
