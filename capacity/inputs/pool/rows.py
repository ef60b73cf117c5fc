"""Hold a pool's row whose values have been checked, before its speed with a certain model is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from capacity.model.roofline import Weights
from capacity.model.workers import Pin

Start = Literal["", "local", "ssh", "sky", "kubernetes", "terraform"]
"""What starts a row's workers; empty: their owner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRow:
    """One row of a pool: ``count`` machines alike, rentable or already running. Fields and units: columns.py.

    Args:
        where: the row's place in the file, for messages.
        memory_gb, bandwidth_gb_s, tflops_bf16: of one accelerator; None: those of the catalogue.
        tensor_parallel, weights: None and empty: those of the demand.
        t_gen_p90_s, rollouts_per_second, tokens_per_second, concurrency: measured values; None: not measured.
    """

    where: str
    worker_id: str
    count: int
    name: str
    provider: str
    region: str
    hardware: str
    memory_gb: float | None
    bandwidth_gb_s: float | None
    tflops_bf16: float | None
    gpus: int
    tensor_parallel: int | None
    weights: Weights | Literal[""]
    usd_per_hour: float
    donated: bool
    upload_mbit_per_second: float
    download_mbit_per_second: float
    egress_usd_per_gb: float
    rollouts_per_second: float | None
    tokens_per_second: float | None
    concurrency: int | None
    t_gen_p90_s: float | None
    relays: bool
    spot: bool
    preemptions_per_hour: float
    lost_per_preemption_s: float
    active: bool
    pin: Pin
    minimum_billing_s: float
    billing_granularity_s: float
    start: Start
    address: str
    python: str
    advertise: str
    infra: str
    instance_type: str
    price_source: str
    price_date: str

    @property
    def worker_ids(self) -> tuple[str, ...]:
        """Return the id of each machine: the row's own for one machine, numbered from 1 for several."""
        if self.count == 1:
            return (self.worker_id,)
        return tuple(f"{self.worker_id}-{number}" for number in range(1, self.count + 1))

    @property
    def cloud_region(self) -> str:
        """Return the region within its cloud; empty if the region names no cloud."""
        return self.region.partition(":")[2]
