"""Define the settings at which predictions are compared with simulations: one fleet, and its variations."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random
from statistics import NormalDist

from capacity.model.demand import NOTICE_S, Conduct, Demand, publish_seconds
from capacity.model.slot_times import mean_of_longest
from capacity.model.workers import Speed, Worker

T_TRAIN_S = 60.0
GENERATE_S = 70.0  # mean time of a batch at an ordinary worker
CONCURRENCY = 2
PER_GROUP = 4
ETA = 1.06  # of eight stripes


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One point of the grid.

    ``spare`` is S - S_needed, ``bcast_steps`` is T_bcast in learner steps, which the size of a version determines.
    """

    name: str = "base"
    phi: float = 1.25
    spare: int = 0
    kappa: int = 1
    bcast_steps: float = 0.2
    speed_sigma: float = 0.1
    length_sigma: float = 0.4
    workers: int = 24
    preemptions_per_hour: float = 0.0
    pauses: bool = False
    conduct: Conduct = field(
        default=Conduct(samples_per_group=PER_GROUP, whole_batches=True, prefetch_s=90.0, reconnect_grace_s=30.0)
    )

    def build(self) -> tuple[Demand, list[tuple[Worker, Speed]], Conduct]:
        """Return the demand, workers and run rules that both the prediction and the simulation get."""
        longest_of = CONCURRENCY if self.conduct.whole_batches else 1
        median_s = GENERATE_S / mean_of_longest(self.length_sigma, longest_of)
        p90_s = median_s * math.exp(self.length_sigma * _z90(longest_of))
        random = Random(self.name)
        factors = [random.lognormvariate(0.0, self.speed_sigma) for _ in range(self.workers)]
        rate = sum(CONCURRENCY * factor / GENERATE_S for factor in factors)
        lost_s = 180.0
        useful = rate * (1.0 - self.preemptions_per_hour * lost_s / 3600.0)
        demand = self._demand(p90_s)
        productive_s = T_TRAIN_S - (self.bcast_steps * T_TRAIN_S / self.kappa if self.pauses else 0.0)
        rollouts = PER_GROUP * max(1, round(useful * productive_s / self.phi / PER_GROUP))
        faster = rollouts * self.phi / (useful * productive_s)  # whole groups only: the speeds make up for it
        workers = [self._worker(number, factor * faster, p90_s) for number, factor in enumerate(factors)]
        demand = replace(demand, rollouts_per_step=rollouts)
        return (
            demand,
            workers,
            replace(
                self.conduct,
                t_publish_s=publish_seconds(demand.update_bytes, _SOURCE_UP),
                t_notice_s=NOTICE_S,
            ),
        )

    def _demand(self, p90_s: float) -> Demand:
        bcast_s = self.bcast_steps * T_TRAIN_S
        wait_s = GENERATE_S if self.conduct.whole_batches else 0.0  # a version waits for the batch that runs
        load_s, score_s = 5.0, 0.6
        needed = math.ceil((bcast_s + load_s + score_s + wait_s + p90_s) / T_TRAIN_S + self.kappa)
        return Demand(
            rollouts_per_step=PER_GROUP,
            t_train_s=T_TRAIN_S,
            staleness_limit=max(1, needed + self.spare),
            publish_every_steps=self.kappa,
            update_bytes=bcast_s / ETA * self._upload_each(),
            learner_upload_bytes_per_second=_SOURCE_UP,
            pauses_while_receiving=self.pauses,
            t_swap_s=0.1,
            t_load_s=load_s,
            t_score_s=score_s,
        )

    def _upload_each(self) -> float:
        return (_SOURCE_UP + self.workers * _UP) / self.workers

    def _worker(self, number: int, factor: float, p90_s: float) -> tuple[Worker, Speed]:
        speed = Speed(CONCURRENCY, CONCURRENCY * factor / GENERATE_S, p90_s / factor, GENERATE_S / factor)
        worker = Worker(
            worker_id=f"w{number}",
            speeds=(speed,),
            usd_per_hour=0.0,
            upload_bytes_per_second=_UP,
            download_bytes_per_second=4.0 * _UP,
            preemptions_per_hour=self.preemptions_per_hour,
            lost_per_preemption_s=180.0,
        )
        return worker, speed


_UP = 1.25e7
_SOURCE_UP = 1.25e8


def grid() -> list[Setting]:
    """Return every point, one variation after the other."""
    return [replace(one, name=f"{number}") for number, one in enumerate(_points())]


def _points() -> Iterator[Setting]:
    base = Setting()
    for spare in (-2, -1, 0, 1, 2):
        for phi in (0.7, 0.85, 1.0, 1.1, 1.25, 1.5):
            yield replace(base, phi=phi, spare=spare)
    for phi in (0.8, 1.25):
        for kappa in (2, 4):
            for spare in (0, 1):
                yield replace(base, phi=phi, kappa=kappa, spare=spare)
        for bcast_steps in (0.01, 0.5, 0.9, 1.4):
            yield replace(base, phi=phi, bcast_steps=bcast_steps)
        for speed_sigma, length_sigma in ((0.0, 0.4), (0.5, 0.4), (0.1, 0.1), (0.1, 0.8)):
            yield replace(base, phi=phi, speed_sigma=speed_sigma, length_sigma=length_sigma)
        for workers in (8, 16, 64):
            yield replace(base, phi=phi, workers=workers)
        for preemptions_per_hour in (0.5, 1.8):
            yield replace(base, phi=phi, preemptions_per_hour=preemptions_per_hour, spare=1)
        for bcast_steps in (0.2, 0.6):
            yield replace(base, phi=phi, bcast_steps=bcast_steps, pauses=True, spare=1)
        for length_sigma in (0.4, 0.8):
            one_by_one = replace(base.conduct, whole_batches=False)
            yield replace(base, phi=phi, length_sigma=length_sigma, conduct=one_by_one)
        yield replace(base, phi=phi, bcast_steps=3.2, spare=-1)


def _z90(longest_of: int) -> float:
    """Return the 90th percentile of the longest of ``longest_of`` standard normal numbers."""
    return NormalDist().inv_cdf(0.9 ** (1.0 / longest_of))
