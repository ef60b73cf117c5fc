"""Compare re-planning with and without memory: worker starts per hour, and learner utilisation.

Both are measured on the recorded availability of spot machines, and on traces sampled with the preemption rates and
correlations of docs/activation.md. Machines belong to zones with their own mean prices. Prices follow a random walk,
speeds are measured with noise, and machines come and go; each of these causes a new plan. During a start, which takes
--start-s, a machine is paid and generates nothing. The learner needs --share of the rollouts that the machines present
on average can generate.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from statistics import fmean

from bench.capacity.trace_availability import spot_instances
from bench.machine import Outcome
from bench.planner.availability import PREEMPTIONS_PER_HOUR, At, Pool, Prices, Zone, drawn, recorded
from capacity.model.demand import Demand
from capacity.replan.events import DemandSeen, ReplanSettings
from capacity.replan.replaying import PoolEvent, Replay, Replayed

_MACHINES = 48  # in sampled traces
_ZONES_PER_REGION = 2
_REGIONS = 3
_USD_PER_HOUR = (0.8, 1.2)  # range of the zones' mean prices
_STEP_S = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=3, help="number of sampled traces")
    parser.add_argument("--hours", type=float, default=12.0, help="length of each sampled trace")
    parser.add_argument("--start-s", type=float, default=180.0)
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--discount", type=float, default=0.3)


@dataclass(frozen=True, slots=True)
class _Trace:
    name: str
    seed: int
    seconds: float
    machines: float  # average number present
    counts: tuple[tuple[float, int], ...] = ()  # (seconds, machines) of the recorded trace

    def events(self, start_s: float) -> Iterator[At]:
        """Return the trace's events, the same ones in each call."""
        random = Random(self.seed)
        zones = _zones(random)
        pool = Pool(zones, Prices(), self.seconds, random, start_s)
        changes = recorded(self.counts, zones, random) if self.counts else drawn(zones, _MACHINES, self.seconds, random)
        return pool.follow(changes)


def run(arguments: argparse.Namespace) -> Outcome:
    settings = ReplanSettings(incumbent_discount=arguments.discount)
    pairs: dict[str, tuple[Replayed, Replayed]] = {}
    for trace in [_recorded(), *(_drawn(seed, arguments) for seed in range(arguments.seeds))]:
        both = (_replayed(trace, one, arguments) for one in (settings, memoryless(settings)))
        pairs[trace.name] = (next(both), next(both))
    figures: dict[str, float] = {}
    for suffix, column in (("", 0), ("_memoryless", 1)):
        for key in ("starts_per_h", "utilisation", "usd_per_useful_h"):
            figures[key + suffix] = fmean(getattr(pair[column], key) for pair in pairs.values())
    figures["starts_ratio_worst"] = max(one.starts_per_h / other.starts_per_h for one, other in pairs.values())
    figures["utilisation_gain_least"] = min(one.utilisation - other.utilisation for one, other in pairs.values())
    for name, pair in pairs.items():
        for suffix, one in zip(("", "_memoryless"), pair, strict=True):
            figures[f"{name}_starts_per_h{suffix}"] = one.starts_per_h
            figures[f"{name}_utilisation{suffix}"] = one.utilisation
    return Outcome(
        {name: getattr(arguments, name) for name in ("seeds", "hours", "start_s", "share", "discount")}, figures
    )


def _zones(random: Random) -> list[Zone]:
    low, high = PREEMPTIONS_PER_HOUR
    return [
        Zone(
            name=f"r{region}z{zone}",
            region=f"r{region}",
            usd_per_hour=random.uniform(*_USD_PER_HOUR),
            rollouts_per_second=1.0,
            preemptions_per_hour=low * (high / low) ** random.random(),
        )
        for region in range(_REGIONS)
        for zone in range(_ZONES_PER_REGION)
    ]


def _recorded() -> _Trace:
    counts = tuple(spot_instances())
    seconds = counts[-1][0]
    spans = itertools.pairwise(counts)
    return _Trace(
        "recorded", 0, seconds, sum((after - at) * count for (at, count), (after, _) in spans) / seconds, counts
    )


def _drawn(seed: int, arguments: argparse.Namespace) -> _Trace:
    return _Trace(f"drawn_{seed}", seed, arguments.hours * 3600.0, float(_MACHINES))


def memoryless(settings: ReplanSettings) -> ReplanSettings:
    """Return the settings without memory: every change causes a plan, and incumbents have no advantage."""
    return replace(settings, incumbent_discount=0.0, dwell_s=0.0, headroom_kept=1.0, price_change=0.0, speed_change=0.0)


def _replayed(trace: _Trace, settings: ReplanSettings, arguments: argparse.Namespace) -> Replayed:
    demand = Demand(
        rollouts_per_step=round(arguments.share * trace.machines * _STEP_S),
        t_train_s=_STEP_S,
        staleness_limit=6,
        update_bytes=1e9,
        learner_upload_bytes_per_second=1.25e9,
        headroom=1.1,
    )
    replay = Replay(settings, start_s=arguments.start_s)
    events: Iterator[tuple[float, PoolEvent]] = trace.events(arguments.start_s)
    return replay.run(_after(demand, events), trace.seconds)


def _after(demand: Demand, events: Iterator[tuple[float, PoolEvent]]) -> Iterator[tuple[float, PoolEvent]]:
    yield 0.0, DemandSeen(demand)
    yield from events
