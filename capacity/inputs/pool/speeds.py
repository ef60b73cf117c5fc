"""Turn rows of a pool into workers with their speeds for a certain model: measured, or estimated by the roofline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from capacity.catalogue.gpus import GIB, gpu_named, gpus
from capacity.catalogue.served import TIMED_INTERVAL, efficiency_of, interval_of
from capacity.inputs.pool.checks import Skipped
from capacity.inputs.pool.rows import PoolRow
from capacity.model.lengths import LengthDistribution
from capacity.model.roofline import WEIGHT_BYTES, Gpu, ModelShape, Weights, speeds_of
from capacity.model.units import BYTES_PER_GB, BYTES_PER_MBIT
from capacity.model.workers import Speed, Worker

TERA = 1e12
MEASURED_INTERVAL = 0.1  # relative: speeds of one machine differ so much between runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """The rollouts to generate, and how the speed of hardware without a measurement is estimated.

    Args:
        model: the model that generates; None: only measured speeds count.
        lengths: distribution of generated tokens, cut where the engine cuts.
        prompt_tokens: mean length of a prompt.
        efficiency: share of the roofline that every accelerator reaches; None: the catalogue's for each.
        concurrencies: rollouts in flight on one accelerator among which the planner chooses.
        tensor_parallel: accelerators that share one copy; None: one each where the model fits, else all of a machine.
        weights: precision of the weights that workers generate with, whatever versions are sent in.
    """

    model: ModelShape | None
    lengths: LengthDistribution
    prompt_tokens: float
    efficiency: float | None
    concurrencies: tuple[int, ...]
    tensor_parallel: int | None = None
    weights: Weights = "bf16"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A machine's speeds, and the relative error that 90 % of such figures stay within; None: not known."""

    speeds: tuple[Speed, ...]
    interval: float | None


NO_SPEED = Estimate((), None)


@dataclass(frozen=True, slots=True)
class Pool:
    """Workers with their speeds, and the rows that are left out.

    Args:
        measured: number of workers whose speed is measured rather than estimated.
    """

    workers: tuple[Worker, ...]
    skipped: tuple[Skipped, ...]
    measured: int


def workers_of(rows: Sequence[PoolRow], rollouts: Rollouts) -> Pool:
    """Return workers with their speeds; skip rows whose hardware is unknown, or too small for the model."""
    workers: list[Worker] = []
    skipped: list[Skipped] = []
    estimated: dict[tuple[object, ...], Estimate | Skipped] = {}
    measured = 0
    for row in rows:
        found: Estimate | Skipped
        if row.rollouts_per_second is not None or row.tokens_per_second is not None:
            found = Estimate((_measured(row, rollouts.lengths),), MEASURED_INTERVAL)
            measured += row.count
        else:
            sheet = row.memory_gb, row.bandwidth_gb_s, row.tflops_bf16
            kind = row.hardware, *sheet, row.gpus, row.tensor_parallel, row.weights
            if kind not in estimated:
                estimated[kind] = _estimated(row, rollouts)
            found = estimated[kind]
        if isinstance(found, Skipped):
            skipped.append(Skipped(row.where, row.worker_id, found.reason, found.column, found.value, found.detail))
        else:
            workers += [worker_of(row, worker_id, found) for worker_id in row.worker_ids]
    return Pool(tuple(workers), tuple(skipped), measured)


def _measured(row: PoolRow, lengths: LengthDistribution) -> Speed:
    """Return a speed from measurements: by Little's law a rollout takes ``concurrency / rate`` seconds on average.

    A p90 that was not measured is that mean times the lengths' p90 / their mean.
    """
    assert row.concurrency is not None
    if row.rollouts_per_second is not None:
        rate = row.rollouts_per_second
    else:
        assert row.tokens_per_second is not None
        rate = row.tokens_per_second / lengths.mean
    mean_s = row.concurrency / rate
    p90_s = row.t_gen_p90_s if row.t_gen_p90_s is not None else mean_s * lengths.quantile(0.9) / lengths.mean
    return Speed(row.concurrency, rate, p90_s, mean_s)


def _estimated(row: PoolRow, rollouts: Rollouts) -> Estimate | Skipped:
    gpu = _gpu_of(row)
    if gpu is None:
        known = (
            f"give its memory_gb, bandwidth_gb_s and tflops_bf16, or a measured speed; known are {', '.join(gpus())}"
        )
        return Skipped(row.where, row.worker_id, "unknown_hardware", "hardware", row.hardware, known)
    if rollouts.model is None:
        return Skipped(row.where, row.worker_id, "missing", "rollouts_per_second", "", "the model is not known either")
    precision = row.weights or rollouts.weights
    model = replace(rollouts.model, bytes_per_parameter=WEIGHT_BYTES[precision])
    sharing = row.tensor_parallel or rollouts.tensor_parallel
    if sharing and sharing > row.gpus:
        detail = f"the machine has {row.gpus} accelerator{'s' if row.gpus > 1 else ''}"
        return Skipped(row.where, row.worker_id, "does_not_fit", "tensor_parallel", str(sharing), detail)
    for each in (sharing,) if sharing else (1, row.gpus):
        speeds = speeds_of(
            gpu,
            model,
            rollouts.lengths,
            rollouts.concurrencies,
            rollouts.efficiency or efficiency_of(gpu),
            prompt_tokens=rollouts.prompt_tokens,
            gpus=each,
        )
        if speeds:
            interval = interval_of(gpu, model, each) if rollouts.efficiency is None else TIMED_INTERVAL
            return Estimate(_of_copies(speeds, row.gpus // each), interval)
    weights_gb, memory_gb = model.weight_bytes / BYTES_PER_GB, gpu.memory_bytes * (sharing or row.gpus) / BYTES_PER_GB
    detail = f"{weights_gb:.1f} GB of weights and their cache in the {memory_gb:.1f} GB that share a copy"
    return Skipped(row.where, row.worker_id, "does_not_fit", "hardware", row.hardware, detail)


def _of_copies(speeds: tuple[Speed, ...], copies: int) -> tuple[Speed, ...]:
    return tuple(
        Speed(
            one.concurrency * copies,
            one.rollouts_per_second * copies,
            one.t_gen_p90_s,
            one.t_gen_mean_s,
            one.t_reread_s,
        )
        for one in speeds
    )


def _gpu_of(row: PoolRow) -> Gpu | None:
    """Return a row's accelerator: what the row states, the rest from the catalogue; None if figures are missing."""
    stated_gib = row.memory_gb * BYTES_PER_GB / GIB if row.memory_gb else None
    known = gpu_named(row.hardware, stated_gib) or gpu_named(row.hardware)
    stated = {
        "memory_bytes": (row.memory_gb, BYTES_PER_GB),
        "bandwidth_bytes_per_second": (row.bandwidth_gb_s, BYTES_PER_GB),
        "flops_per_second": (row.tflops_bf16, TERA),
    }
    figures: dict[str, Any] = {name: value * unit for name, (value, unit) in stated.items() if value is not None}
    if known is not None:
        return replace(known, **figures)
    return Gpu(row.hardware or "accelerator", **figures) if len(figures) == len(stated) else None


def worker_of(row: PoolRow, worker_id: str, estimate: Estimate = NO_SPEED) -> Worker:
    """Return one of a row's workers; without a speed no plan chooses it."""
    return Worker(
        worker_id=worker_id,
        speeds=estimate.speeds,
        speed_interval=estimate.interval,
        usd_per_hour=row.usd_per_hour,
        upload_bytes_per_second=row.upload_mbit_per_second * BYTES_PER_MBIT,
        download_bytes_per_second=row.download_mbit_per_second * BYTES_PER_MBIT,
        egress_usd_per_gb=row.egress_usd_per_gb,
        relays=row.relays,
        preemptions_per_hour=row.preemptions_per_hour,
        lost_per_preemption_s=row.lost_per_preemption_s,
        name=row.name,
        hardware=f"{row.gpus} x {row.hardware}" if row.gpus > 1 else row.hardware,
        provider=row.provider,
        region=row.region,
        active=row.active,
        pin=row.pin,
    )
