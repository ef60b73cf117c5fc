"""Hold the pool as arrays with one entry per worker; the programme of every split is built from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capacity.model.demand import Demand
from capacity.model.useful_rate import IN_TIME_SHARES, options_of
from capacity.model.workers import Worker

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

PRICE_LEVELS_MAX = 32  # most price levels of egress

_PINS = {"": 0, "on": 1, "off": -1}
_PER_WORKER = ("price", "upload", "download", "egress_usd_per_gb", "kept", "region", "active", "kind", "level")


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Arrays of shape [n] unless said otherwise; rates in bytes/s and rollouts/s, prices in USD/h and USD/GB.

    Args:
        kept: share of its work that preemptions leave, ``1 - q``.
        region: index into ``regions``; -1 where it is not known.
        pin: 1 on, -1 off, 0 neither.
        kind: row of ``option_rate`` and ``option_s`` that holds its options.
        option_rate, option_s: shape [kinds, options]; padded with 0 rollouts/s and inf seconds. An option is a speed
            and the share of prompt groups that it completes in time: the rollouts/s that are trained, after swaps of
            versions and groups that come too late, and the seconds within which that share of groups is complete.
            Option o is of speed ``o // len(IN_TIME_SHARES)``.
        level: index into ``level_usd_per_gb`` of its price for sending.
        level_usd_per_gb: shape [levels], ascending. With too many prices each is rounded down to a level, so that a
            bound stays a bound.
    """

    workers: tuple[Worker, ...]
    price: Floats
    upload: Floats
    download: Floats
    egress_usd_per_gb: Floats
    kept: Floats
    region: Ints
    regions: tuple[str, ...]
    active: Mask
    pin: Ints
    kind: Ints
    option_rate: Floats
    option_s: Floats
    level: Ints
    level_usd_per_gb: Floats

    def __len__(self) -> int:
        return len(self.workers)

    def fastest_within(self, t_gen_s: float) -> tuple[Ints, Floats]:
        """Return each worker's best option that fits, as index and rollouts/s; -1 and 0.0 where none fits."""
        rate = np.where(self.option_s <= t_gen_s, self.option_rate, 0.0)
        best = rate.argmax(axis=1)
        best_rate = rate[np.arange(len(rate)), best]
        return np.where(best_rate > 0, best, -1)[self.kind], best_rate[self.kind]

    def only(self, places: Ints) -> Columns:
        """Return the pool of these workers alone, in this order."""
        kinds, kind = np.unique(self.kind[places], return_inverse=True)
        changed: dict[str, Any] = {name: getattr(self, name)[places] for name in (*_PER_WORKER, "pin")}
        return replace(
            self,
            workers=tuple(self.workers[place] for place in places.tolist()),
            option_rate=self.option_rate[kinds],
            option_s=self.option_s[kinds],
            **(changed | {"kind": kind.reshape(-1)}),
        )

    def with_copies(self, place: int, number: int) -> Columns:
        """Return the pool with so many more workers like this one, not pinned, under the id of this worker."""
        rows = np.append(np.arange(len(self)), np.full(number, place))
        pin = self.pin[rows]
        pin[len(self) :] = 0
        changed: dict[str, Any] = {name: getattr(self, name)[rows] for name in _PER_WORKER}
        return replace(self, workers=(*self.workers, *[self.workers[place]] * number), pin=pin, **changed)

    def generation_times_s(self) -> Floats:
        """Return every time that some worker's option takes, ascending: between two of them a split gains nothing."""
        finite = self.option_s[np.isfinite(self.option_s) & (self.option_rate > 0)]
        return np.unique(finite)


def columns_of(demand: Demand, workers: Sequence[Worker]) -> Columns:
    """Convert the pool to arrays, with the options that each worker has in a run with this demand.

    Raises:
        ValueError: two workers have one id.
    """
    if len({worker.worker_id for worker in workers}) < len(workers):
        raise ValueError("two workers have the same worker_id")
    egress_usd_per_gb = _floats([worker.egress_usd_per_gb for worker in workers])
    level, level_usd_per_gb = _price_levels(egress_usd_per_gb)
    regions = tuple(sorted({worker.region for worker in workers if worker.region}))
    number_of = {region: number for number, region in enumerate(regions)} | {"": -1}
    kind, option_rate, option_s = _options(demand, workers)
    return Columns(
        workers=tuple(workers),
        price=_floats([worker.usd_per_hour for worker in workers]),
        upload=_floats([worker.upload_bytes_per_second if worker.relays else 0.0 for worker in workers]),
        download=_floats([worker.download_bytes_per_second for worker in workers]),
        egress_usd_per_gb=egress_usd_per_gb,
        kept=_floats([1.0 - worker.preemption_loss for worker in workers]),
        region=np.array([number_of[worker.region] for worker in workers], np.int64),
        regions=regions,
        active=np.array([worker.active for worker in workers], np.bool_),
        pin=np.array([_PINS[worker.pin] for worker in workers], np.int64),
        kind=kind,
        option_rate=option_rate,
        option_s=option_s,
        level=level,
        level_usd_per_gb=level_usd_per_gb,
    )


def _price_levels(usd_per_gb: Floats) -> tuple[Ints, Floats]:
    """Return the level of each price, and the levels."""
    levels, level = np.unique(usd_per_gb, return_inverse=True)
    if levels.size > PRICE_LEVELS_MAX:
        kept = levels[np.linspace(0, levels.size - 1, PRICE_LEVELS_MAX).astype(np.int64)]
        return np.searchsorted(kept, usd_per_gb, side="right") - 1, kept
    return level.astype(np.int64).reshape(-1), levels


def _options(demand: Demand, workers: Sequence[Worker]) -> tuple[Ints, Floats, Floats]:
    """Convert each distinct tuple of speeds once, because workers of one hardware mostly share one."""
    kinds = {id(worker.speeds): worker.speeds for worker in workers}
    number_of = {key: number for number, key in enumerate(kinds)}
    most = max((len(speeds) for speeds in kinds.values()), default=0) or 1
    rate = np.zeros((len(kinds), most * len(IN_TIME_SHARES)))
    seconds = np.full(rate.shape, np.inf)
    for number, speeds in enumerate(kinds.values()):
        options = [option for speed in speeds for option in options_of(demand, speed)]
        for place, (rollouts_per_second, group_s) in enumerate(options):
            rate[number, place], seconds[number, place] = rollouts_per_second, group_s
    return np.array([number_of[id(worker.speeds)] for worker in workers], np.int64), rate, seconds


def _floats(values: list[float]) -> Floats:
    return np.array(values, np.float64)
