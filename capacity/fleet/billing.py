"""Compute what a worker costs: by the hour, with a minimum and in whole units of time, and by the byte."""

from __future__ import annotations

import math
from dataclasses import dataclass

from capacity.model.units import BYTES_PER_GB, SECONDS_PER_HOUR
from capacity.providers.base import Offer


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The price of one worker, agreed when it is started.

    Args:
        usd_per_hour: price of the machine.
        egress_usd_per_gb: price of what it sends; 1 GB = 1e9 bytes.
        upload_bytes_per_second: cap on what it sends, so that its egress has a bound.
        minimum_s, granularity_s, tail_s: see Offer.
    """

    usd_per_hour: float
    egress_usd_per_gb: float = 0.0
    upload_bytes_per_second: float = 0.0
    minimum_s: float = 0.0
    granularity_s: float = 1.0
    tail_s: float = 0.0

    @classmethod
    def of(cls, offer: Offer) -> Terms:
        """Return the terms of an offer."""
        return cls(
            usd_per_hour=offer.worker.usd_per_hour,
            egress_usd_per_gb=offer.worker.egress_usd_per_gb,
            upload_bytes_per_second=offer.worker.upload_bytes_per_second,
            minimum_s=offer.minimum_s,
            granularity_s=offer.granularity_s,
            tail_s=offer.tail_s,
        )

    @property
    def egress_usd_per_hour_max(self) -> float:
        """US dollars for what it can send in an hour: its cap at its price."""
        return self.egress_usd(self.upload_bytes_per_second * SECONDS_PER_HOUR)

    @property
    def committed_usd_per_hour(self) -> float:
        """The most that it costs in an hour."""
        return self.usd_per_hour + self.egress_usd_per_hour_max

    def machine_usd(self, seconds: float) -> float:
        """Return the cost of so many seconds of the machine, with the minimum and whole units."""
        units = math.ceil(max(0.0, seconds) / self.granularity_s)
        return self.usd_per_hour * max(self.minimum_s, units * self.granularity_s) / SECONDS_PER_HOUR

    def egress_usd(self, sent_bytes: float) -> float:
        """Return the cost of so many bytes sent."""
        return self.egress_usd_per_gb * sent_bytes / BYTES_PER_GB
