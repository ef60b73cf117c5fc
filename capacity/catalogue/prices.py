"""List offers of rented GPUs and of what else a run pays for, with the source of each.

Origin: data/prices/README.md; take 50 % uncertainty.
"""

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


@dataclass(frozen=True, slots=True)
class OtherPrice:
    """The price of something that a run needs besides GPUs.

    Args:
        item: coordinator (a machine) or storage.
        per: hour, or GB-month (1e9 bytes for a month).
    """

    item: str
    provider: str
    offer: str
    usd: float
    per: str
    source: str
    read_on: str


@functools.cache
def other_price(item: str) -> OtherPrice:
    """Return the price of an item.

    Raises:
        KeyError: there is no such item.
    """
    for row in read_rows(FOLDER, "other_prices.csv"):
        if row["item"] == item:
            return OtherPrice(**{**row, "usd": float(row["usd"])})  # type: ignore[arg-type]
    raise KeyError(item)


def rented_for_long(hardware: str) -> GpuPrice | None:
    """Return the cheapest offer per GPU that is not taken back at any time: on-demand, else of a marketplace."""
    for kind in ("on-demand", "marketplace"):
        found = [one for one in gpu_prices() if (one.hardware, one.kind) == (hardware, kind)]
        if found:
            return min(found, key=lambda one: one.usd_per_gpu_hour)
    return None
