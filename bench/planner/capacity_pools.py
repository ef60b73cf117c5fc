"""Generate realistic pools of workers: machines in homes and labs, rented ones, and clouds with expensive traffic.

Links are of the kinds in bench/broadcast/plan.py, with heavier tails; speeds are the roofline of each GPU's data sheet
with the lengths of production DeepSeek-R1; prices are about those of the shipped catalogue, less in homes, which pay
for power only. Each has a log-normal spread.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from dataclasses import dataclass

from capacity.catalogue.gpus import gpus
from capacity.catalogue.models import models
from capacity.catalogue.token_lengths import lengths_named
from capacity.model.demand import Demand
from capacity.model.roofline import speeds_of
from capacity.model.workers import Speed, Worker

MBIT = 1e6 / 8
LINK_SPREAD = 0.8  # sigma of the logarithm of a rate within its kind: homes differ by more than their tariffs
PRICE_SPREAD = 0.3
PACE_SPREAD = 0.1  # of one GPU type: clocks, cooling, what else runs
CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64, 128)
REGIONS = ("us-east", "us-west", "eu-west", "eu-north", "ap-south", "ap-east")


@dataclass(frozen=True, slots=True)
class Setting:
    """A kind of place for workers. Rates are medians in Mbit/s; preemptions per hour a mean."""

    name: str
    share: float
    up_mbit_s: float
    down_mbit_s: float
    relays_share: float
    egress_usd_per_gb: tuple[float, ...]
    preemptions_per_hour: float
    gpus: tuple[tuple[str, float], ...]  # (name, median USD/h)


SETTINGS = (
    Setting("cable", 0.40, 25, 300, 0.9, (0.0,), 0.10, (("rtx-3090", 0.15), ("rtx-4090", 0.30), ("rtx-5090", 0.45))),
    Setting("fibre", 0.22, 150, 500, 0.9, (0.0,), 0.05, (("rtx-3090", 0.17), ("rtx-4090", 0.33), ("rtx-5090", 0.48))),
    Setting("lab", 0.08, 600, 900, 0.9, (0.0,), 0.02, (("rtx-a6000", 0.43), ("a100-sxm", 0.9), ("h100-sxm", 1.8))),
    Setting(
        "marketplace",
        0.20,
        400,
        700,
        0.8,
        (0.0, 0.0, 0.005, 0.01, 0.02),
        0.15,
        (("rtx-4090", 0.40), ("l40s", 0.60), ("a100-pcie", 0.87), ("h100-sxm", 1.87)),
    ),
    Setting(
        "cloud",
        0.10,
        2000,
        2000,
        1.0,
        (0.02, 0.05, 0.08, 0.09, 0.12),
        0.30,
        (("l4", 0.70), ("a100-sxm", 1.29), ("h100-sxm", 2.29), ("h200-sxm", 3.39)),
    ),
)

MODEL = "qwen3-8b"
VERSION_BYTES_PER_PARAMETER = 1.0  # keyframes in fp8


def demand(rollouts_per_step: int = 8192) -> Demand:
    """Return a run that needs about a hundred workers, and whose versions only many relays can spread in time."""
    return Demand(
        rollouts_per_step=rollouts_per_step,
        t_train_s=60.0,
        staleness_limit=12,
        publish_every_steps=5,
        update_bytes=VERSION_BYTES_PER_PARAMETER * models()[MODEL].parameters,
        learner_upload_bytes_per_second=1000 * MBIT,
    )


def pool(
    workers: int, seed: int, settings: Sequence[Setting] = SETTINGS, pace_spread: float = PACE_SPREAD
) -> list[Worker]:
    """Return ``workers`` sampled workers; the same seed gives the same workers."""
    rng = random.Random(seed)
    drawn = rng.choices(settings, [setting.share for setting in settings], k=workers)
    return [_worker(rng, number, setting, pace_spread) for number, setting in enumerate(drawn)]


def _worker(rng: random.Random, number: int, setting: Setting, pace_spread: float) -> Worker:
    gpu, usd_per_hour = rng.choice(setting.gpus)
    return Worker(
        worker_id=f"{setting.name}-{number}",
        speeds=_at_pace(_speeds(gpu), rng.lognormvariate(0.0, pace_spread)),
        usd_per_hour=usd_per_hour * rng.lognormvariate(0.0, PRICE_SPREAD),
        upload_bytes_per_second=setting.up_mbit_s * MBIT * rng.lognormvariate(0.0, LINK_SPREAD),
        download_bytes_per_second=setting.down_mbit_s * MBIT * rng.lognormvariate(0.0, LINK_SPREAD),
        egress_usd_per_gb=rng.choice(setting.egress_usd_per_gb),
        relays=rng.random() < setting.relays_share,
        preemptions_per_hour=setting.preemptions_per_hour * rng.expovariate(1.0),
        lost_per_preemption_s=300.0,
        hardware=gpu,
        provider=setting.name,
        region=rng.choice(REGIONS),
    )


@functools.cache
def _speeds(gpu: str) -> tuple[Speed, ...]:
    lengths = lengths_named("deepseek-r1")
    assert lengths is not None
    return speeds_of(gpus()[gpu], models()[MODEL], lengths, CONCURRENCIES)


def _at_pace(speeds: tuple[Speed, ...], pace: float) -> tuple[Speed, ...]:
    return tuple(
        Speed(one.concurrency, one.rollouts_per_second * pace, one.t_gen_p90_s / pace, one.t_gen_mean_s / pace)
        for one in speeds
    )
