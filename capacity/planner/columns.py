"""Hold the pool as arrays with one entry per worker; the programme of every split is built from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capacity.model.workers import Worker

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

PRICE_LEVELS_MAX = 32  # most price levels of egress

_PINS = {"": 0, "on": 1, "off": -1}


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Arrays of shape [n] unless said otherwise; rates in bytes/s and rollouts/s, prices in USD/h and USD/GB.

    Args:
        kept: share of its work that preemptions leave, ``1 - q``.
        region: index into ``regions``; -1 where it is not known.
        pin: 1 on, -1 off, 0 neither.
        kind: row of ``speed_rate`` and ``speed_p90`` that holds its speeds.
        speed_rate, speed_p90: shape [kinds, most speeds]; padded with 0 rollouts/s and inf seconds.
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
    speed_rate: Floats
    speed_p90: Floats
    level: Ints
    level_usd_per_gb: Floats

    def __len__(self) -> int:
        return len(self.workers)

    def fastest_within(self, t_gen_s: float) -> tuple[Ints, Floats]:
        """Return each worker's fastest speed whose p90 fits, as index and rollouts/s; -1 and 0.0 where none fits."""
        rate = np.where(self.speed_p90 <= t_gen_s, self.speed_rate, 0.0)
        best = rate.argmax(axis=1)
        best_rate = rate[np.arange(len(rate)), best]
        return np.where(best_rate > 0, best, -1)[self.kind], best_rate[self.kind]

    def with_copies(self, place: int, number: int) -> Columns:
        """Return the pool with so many more workers like this one, not pinned, under the id of this worker."""
        rows = np.append(np.arange(len(self)), np.full(number, place))
        pin = self.pin[rows]
        pin[len(self) :] = 0
        per_worker = ("price", "upload", "download", "egress_usd_per_gb", "kept", "region", "active", "kind", "level")
        changed: dict[str, Any] = {name: getattr(self, name)[rows] for name in per_worker}
        return replace(self, workers=(*self.workers, *[self.workers[place]] * number), pin=pin, **changed)

    def generation_times_s(self) -> Floats:
        """Return every p90 that some worker offers, ascending: between two of them a split gains nothing."""
        finite = self.speed_p90[np.isfinite(self.speed_p90) & (self.speed_rate > 0)]
        return np.unique(finite)


def columns_of(workers: Sequence[Worker]) -> Columns:
    """Convert the pool to arrays.

    Raises:
        ValueError: two workers have one id.
    """
    if len({worker.worker_id for worker in workers}) < len(workers):
        raise ValueError("two workers have the same worker_id")
    egress_usd_per_gb = _floats([worker.egress_usd_per_gb for worker in workers])
    level, level_usd_per_gb = _price_levels(egress_usd_per_gb)
    regions = tuple(sorted({worker.region for worker in workers if worker.region}))
    number_of = {region: number for number, region in enumerate(regions)} | {"": -1}
    kind, speed_rate, speed_p90 = _speeds(workers)
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
        speed_rate=speed_rate,
        speed_p90=speed_p90,
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


def _speeds(workers: Sequence[Worker]) -> tuple[Ints, Floats, Floats]:
    """Convert each distinct tuple of speeds once, because workers of one hardware mostly share one."""
    kinds = {id(worker.speeds): worker.speeds for worker in workers}
    number_of = {key: number for number, key in enumerate(kinds)}
    most = max((len(speeds) for speeds in kinds.values()), default=0) or 1
    rate, p90 = np.zeros((len(kinds), most)), np.full((len(kinds), most), np.inf)
    for number, speeds in enumerate(kinds.values()):
        for place, speed in enumerate(speeds):
            rate[number, place], p90[number, place] = speed.rollouts_per_second, speed.t_gen_p90_s
    return np.array([number_of[id(worker.speeds)] for worker in workers], np.int64), rate, p90


def _floats(values: list[float]) -> Floats:
    return np.array(values, np.float64)
