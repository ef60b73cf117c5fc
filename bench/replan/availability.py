"""Provide the availability of machines over time: a recorded trace, and traces sampled with rates and correlations."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from capacity.model.units import SECONDS_PER_HOUR
from capacity.model.workers import Speed, Worker
from capacity.replan.events import WorkerGone, WorkerSeen

At = tuple[float, WorkerSeen | WorkerGone]

PREEMPTIONS_PER_HOUR = (0.02, 1.8)  # a node: least and most of the zones measured (docs/activation.md)
_SAME_REGION, _ACROSS = 0.59, 0.27  # correlation of two zones' pressure
_PRESSURE = 1.0  # sigma of the logarithm of a zone's preemption rate
_PRESSURE_STEP_S = 300.0
_PRESSURE_KEPT = 0.8  # share of the pressure that is left a step later
_AWAY_S = 2400.0  # on average, until a machine that was taken away is offered again


@dataclass(frozen=True, slots=True)
class Prices:
    """The movement of zones' prices and workers' measured speeds: mean-reverting walks of their logarithms.

    Args:
        sigma: standard deviation of the logarithm of a zone's price around its mean.
        reverts_s: seconds after which a deviation has fallen to 1/e.
        every_s: seconds between two prices.
        speed_sigma: standard deviation of the logarithm of a measured speed, sampled anew for each measurement.
    """

    sigma: float = 0.15
    reverts_s: float = 3.0 * SECONDS_PER_HOUR
    every_s: float = 600.0
    speed_sigma: float = 0.03


@dataclass(frozen=True, slots=True)
class Zone:
    """One market, whose machines are alike.

    Args:
        usd_per_hour: mean price of its machines.
        preemptions_per_hour: at which its machines are preempted on average, where they are sampled.
        stated_per_hour: preemptions that are stated to the policy, which knows no better at first.
        spot: whether its prices move and its machines may be taken away.
    """

    name: str
    region: str
    usd_per_hour: float
    rollouts_per_second: float
    preemptions_per_hour: float
    hardware: str = ""
    stated_per_hour: float = 0.0
    spot: bool = True


def walk(random: Random, prices: Prices, seconds: float) -> list[float]:
    """Return a factor on a price for each period, with mean 1."""
    kept = math.exp(-prices.every_s / prices.reverts_s)
    deviation, factors = random.gauss(0.0, prices.sigma), []
    for _ in range(math.ceil(seconds / prices.every_s)):
        factors.append(math.exp(deviation - prices.sigma**2 / 2.0))
        deviation = kept * deviation + random.gauss(0.0, prices.sigma * math.sqrt(1.0 - kept**2))
    return factors


Change = tuple[float, str, Zone, bool]  # seconds, machine, its zone, whether it comes or goes


class Pool:
    """Machines that come and go in zones whose prices move."""

    def __init__(self, zones: Sequence[Zone], prices: Prices, seconds: float, random: Random, start_s: float) -> None:
        self._prices = prices
        self._random = random
        self._start_s = start_s
        self._factors = {zone.name: walk(random, prices, seconds) for zone in zones}

    def seen(self, worker_id: str, zone: Zone, at_s: float) -> WorkerSeen:
        """Return a machine as it is seen at this time, with the price of its zone and a measured speed."""
        factors = self._factors[zone.name]
        factor = factors[min(len(factors) - 1, int(at_s / self._prices.every_s))] if zone.spot else 1.0
        measured = zone.rollouts_per_second * math.exp(self._random.gauss(0.0, self._prices.speed_sigma))
        worker = Worker(
            worker_id=worker_id,
            speeds=(Speed(16, measured, 60.0),),
            usd_per_hour=round(zone.usd_per_hour * factor, 4),
            upload_bytes_per_second=1.25e8,
            download_bytes_per_second=1.25e9,
            preemptions_per_hour=zone.stated_per_hour,
            lost_per_preemption_s=self._start_s,
            hardware=zone.hardware,
            provider="spot" if zone.spot else "on demand",
            region=zone.name,
        )
        return WorkerSeen(worker)

    def follow(self, changes: Iterator[Change]) -> Iterator[At]:
        """Yield the changes in order of time, and each period the price and speed of every machine present."""
        here: dict[str, Zone] = {}
        period = 1
        for at_s, worker_id, zone, comes in changes:
            while period * self._prices.every_s <= at_s:
                due_s = period * self._prices.every_s
                yield from [(due_s, self.seen(one, where, due_s)) for one, where in here.items()]
                period += 1
            if comes:
                here[worker_id] = zone
                yield at_s, self.seen(worker_id, zone, at_s)
            else:
                del here[worker_id]
                yield at_s, WorkerGone(worker_id, "preempted", preempted=True)


Counts = Sequence[tuple[float, int]]  # seconds since the start, and machines alive from then on


def recorded(zones: Sequence[tuple[Zone, Counts]], random: Random) -> Iterator[Change]:
    """Return machines of zones that follow recorded numbers; those that leave are sampled among the zone's."""
    return heapq.merge(*(_followed(zone, counts, random) for zone, counts in zones), key=lambda change: change[0])


def _followed(zone: Zone, counts: Counts, random: Random) -> list[Change]:
    here: list[str] = []
    number = 0
    changes: list[Change] = []
    for at_s, count in counts:
        while len(here) < count:
            number += 1
            here.append(f"{zone.name}-{number}")
            changes.append((at_s, here[-1], zone, True))
        while len(here) > count:
            changes.append((at_s, here.pop(random.randrange(len(here))), zone, False))
    return changes


def shifted(counts: Counts, by_s: float, machines: int) -> list[tuple[float, int]]:
    """Return a record that begins so much later and goes on with its start, scaled to so many machines at most."""
    length_s, most = counts[-1][0], max(count for _, count in counts)
    begins = [count for at_s, count in counts if at_s <= by_s][-1]
    later = sorted(((at_s - by_s) % length_s, count) for at_s, count in counts[:-1])
    return [(at_s, round(count * machines / most)) for at_s, count in [(0.0, begins), *later]]


def average(changes: Iterable[Change], seconds: float) -> float:
    """Return the rollouts a second that the machines present could generate, on average."""
    total = sum(
        (1.0 if comes else -1.0) * (seconds - at_s) * zone.rollouts_per_second for at_s, _, zone, comes in changes
    )
    return total / seconds


def drawn(zones: Sequence[Zone], machines: int, seconds: float, random: Random) -> Iterator[Change]:
    """Return machines that are preempted at their zone's rate times a partly shared pressure, and come back."""
    state = {f"w{number}": zones[number % len(zones)] for number in range(machines)}
    away: dict[str, float] = {}
    for worker_id, zone in state.items():
        yield 0.0, worker_id, zone, True
    pressures = _Pressures(zones, random)
    for step in range(1, math.ceil(seconds / _PRESSURE_STEP_S)):
        at_s, factors = step * _PRESSURE_STEP_S, pressures.next()
        changes: list[Change] = []
        for worker_id, zone in state.items():
            moment_s = at_s + random.random() * _PRESSURE_STEP_S
            if worker_id in away:
                if away[worker_id] <= at_s:
                    del away[worker_id]
                    changes.append((moment_s, worker_id, zone, True))
            elif random.random() < -math.expm1(
                -zone.preemptions_per_hour * factors[zone.name] * _PRESSURE_STEP_S / SECONDS_PER_HOUR
            ):
                away[worker_id] = at_s + _PRESSURE_STEP_S + random.expovariate(1.0 / _AWAY_S)
                changes.append((moment_s, worker_id, zone, False))
        yield from sorted(changes, key=lambda one: (one[0], one[1]))


class _Pressures:
    """The factors on zones' preemption rates, with mean 1; those of one region are correlated more than others."""

    def __init__(self, zones: Sequence[Zone], random: Random) -> None:
        self._zones, self._random = zones, random
        names = ["everywhere", *(f"region {zone.region}" for zone in zones), *(f"zone {zone.name}" for zone in zones)]
        self._values = {name: random.gauss(0.0, 1.0) for name in names}

    def next(self) -> dict[str, float]:
        """Advance one step, and return the factor of each zone."""
        fresh = math.sqrt(1.0 - _PRESSURE_KEPT**2)
        for name, value in self._values.items():
            self._values[name] = _PRESSURE_KEPT * value + fresh * self._random.gauss(0.0, 1.0)
        return {zone.name: self._factor(zone) for zone in self._zones}

    def _factor(self, zone: Zone) -> float:
        shared = math.sqrt(_ACROSS) * self._values["everywhere"]
        shared += math.sqrt(_SAME_REGION - _ACROSS) * self._values[f"region {zone.region}"]
        own = math.sqrt(1.0 - _SAME_REGION) * self._values[f"zone {zone.name}"]
        return math.exp(_PRESSURE * (shared + own) - _PRESSURE**2 / 2.0)
