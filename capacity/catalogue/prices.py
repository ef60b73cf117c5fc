"""List offers of rented GPUs with the source of each. Origin: data/prices/README.md; take 50 % uncertainty."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from capacity.catalogue.csv_tables import read_rows

FOLDER = "prices"


@dataclass(frozen=True, slots=True)
class GpuPrice:
    """One offer of a machine with GPUs.

    Args:
        gpus: GPUs in the machine.
        kind: marketplace, on-demand or spot.
        usd_per_hour: price of the whole machine.
        source: file and commit of the price list.
        read_on: date on which the price list was read, YYYY-MM-DD.
    """

    provider: str
    offer: str
    hardware: str
    gpus: int
    kind: str
    usd_per_hour: float
    source: str
    read_on: str

    @property
    def usd_per_gpu_hour(self) -> float:
        return self.usd_per_hour / self.gpus


@functools.cache
def gpu_prices() -> tuple[GpuPrice, ...]:
    """Return all offers, in the order of the price list."""
    return tuple(
        GpuPrice(
            provider=row["provider"],
            offer=row["offer"],
            hardware=row["hardware"],
            gpus=int(row["gpus"]),
            kind=row["kind"],
            usd_per_hour=float(row["usd_per_hour"]),
            source=row["source"],
            read_on=row["read_on"],
        )
        for row in read_rows(FOLDER, "gpu_prices.csv")
    )
