"""Read links between regions: clouds' (Skyplane) and ten AWS regions' (DT-FM). Origin: data/skyplane and data/dtfm."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from capacity.catalogue.csv_tables import number_or_none, read_rows

BYTES_PER_MBIT = 1e6 / 8
BYTES_PER_GBIT = 1e9 / 8


@dataclass(frozen=True, slots=True)
class RegionLink:
    """The link from one cloud region to another.

    Args:
        bytes_per_second: rate of 64 connections together.
        round_trip_s: round trip time; None: not known.
        egress_usd_per_gb: price of bytes that leave the source, 1 GB = 1e9 bytes; None: not known.
    """

    bytes_per_second: float
    round_trip_s: float | None
    egress_usd_per_gb: float | None


@dataclass(frozen=True, slots=True, eq=False)
class LinkMatrix:
    """The links between regions, both directions alike.

    Args:
        regions: names, in the order of rows and columns.
        bytes_per_second: rates, shape [regions, regions], float64; inf on the diagonal.
        delay_s: one-way delays, shape [regions, regions]; 0 on the diagonal.
    """

    regions: tuple[str, ...]
    bytes_per_second: NDArray[np.float64]
    delay_s: NDArray[np.float64]


@functools.cache
def region_links() -> Mapping[tuple[str, str], RegionLink]:
    """Return the 4,032 links by (from, to), regions named as ``aws:us-east-1``."""
    return {
        (row["src_region"], row["dst_region"]): RegionLink(
            bytes_per_second=float(row["mbps_64conn"]) * BYTES_PER_MBIT,
            round_trip_s=_seconds(number_or_none(row["avg_rtt"])),
            egress_usd_per_gb=number_or_none(row["egress_usd_per_gb"]),
        )
        for row in read_rows("skyplane", "region_pairs.csv")
    }


@functools.cache
def regions() -> tuple[str, ...]:
    """Return the 64 cloud regions, sorted."""
    return tuple(sorted({source for source, _ in region_links()}))


def egress_usd_per_gb(region: str) -> float | None:
    """Return the median price of leaving a cloud region for another; None if the region or its prices are not known."""
    prices = [
        link.egress_usd_per_gb
        for (source, _), link in region_links().items()
        if source == region and link.egress_usd_per_gb is not None
    ]
    return float(np.median(prices)) if prices else None


@functools.cache
def ten_regions() -> LinkMatrix:
    """Return the links between ten AWS regions, Oregon to Ireland."""
    rows = read_rows("dtfm", "aws_10_regions_delay_bandwidth.csv")
    names = tuple(dict.fromkeys(name for row in rows for name in (row["a"], row["b"])))
    index = {name: number for number, name in enumerate(names)}
    rates, delays = np.full((len(names), len(names)), np.inf), np.zeros((len(names), len(names)))
    for row in rows:
        a, b = index[row["a"]], index[row["b"]]
        rates[a, b] = rates[b, a] = float(row["gbps"]) * BYTES_PER_GBIT
        delays[a, b] = delays[b, a] = float(row["delay_ms"]) / 1000.0
    return LinkMatrix(names, rates, delays)


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000.0
