"""Configuration of which peers are worth having on."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from capacity.replan.events import ReplanSettings
from coordinator.core.events.prices import ActivationSettings, Budget, Price
from rollcast.runtime.config import ConfigModel


class PriceConfig(ConfigModel):
    """What peers cost that match every pattern, with ``*`` and ``?`` as in file names. The first that matches holds."""

    peer_id: str = "*"
    """Of a peer's identity: the only thing that a peer cannot choose."""
    name: str = "*"
    """Of its name."""
    hardware: str = "*"
    """Of what it says that it runs on."""
    region: str = "*"
    """Of its region."""
    usd_per_hour: float = Field(ge=0.0, le=1e6)
    """Price while it is on."""
    egress_usd_per_gb: float = Field(0.0, ge=0.0, le=1e3)
    """Price of what it sends to other peers; 1 GB = 1e9 bytes."""
    preemptions_per_hour: float = Field(0.0, ge=0.0, le=60.0)
    """How often such a machine is taken away, on average."""


class CapacityConfig(ConfigModel):
    """Which peers the capacity model switches on: the cheapest set that keeps the learner busy (docs/activation.md)."""

    mode: Literal["off", "advise", "act"] = "off"
    """off: every peer works; advise: the status says what the model would do; act: it does it."""
    prices: list[PriceConfig] = Field(default_factory=list, max_length=256)
    """A peer that none matches is donated: it costs nothing, and is on unless it holds up the others."""
    usd_per_hour_max: float | None = Field(None, ge=0.0)
    """What peers and their traffic may cost; none: no limit. A set above it is never chosen."""
    origin_egress_usd_per_gb: float = Field(0.0, ge=0.0)
    """Price of what the origin sends."""
    headroom: float = Field(1.15, ge=1.0, le=4.0)
    """Rollouts a second bought / needed."""
    share_without_a_region: float = Field(0.0, ge=0.0, le=1.0)
    """Share of the needed rate that is left when any one region is lost; 0: not asked for."""
    incumbent_discount: float = Field(0.3, ge=0.0, lt=1.0)
    """By so much another peer must be cheaper to replace one that is on."""
    dwell_s: float = Field(300.0, ge=0.0)
    """Seconds for which a peer that was switched on or off stays so."""
    interval_s: float = Field(600.0, gt=0.0)
    """Seconds between two plans where nothing else asks for one."""
    gather_s: float = Field(2.0, ge=0.0)
    """Seconds in which causes to plan are gathered: joins, leaves, other prices and speeds, another S."""
    standby_receives: Literal["cheap", "always", "never"] = "cheap"
    """Whether peers that are off go on receiving versions, so that they can start at once."""

    def settings(
        self, *, unknown_upload_bytes_per_second: float, usd_total_max: float | None = None
    ) -> ActivationSettings:
        """As the core has them; ``usd_total_max``: for workers at providers."""
        return ActivationSettings(
            mode=self.mode,
            prices=tuple(Price(**one.model_dump()) for one in self.prices),
            origin_egress_usd_per_gb=self.origin_egress_usd_per_gb,
            budget=Budget(usd_per_hour_max=self.usd_per_hour_max, usd_total_max=usd_total_max),
            headroom=self.headroom,
            share_without_a_region=self.share_without_a_region,
            standby_receives=self.standby_receives,
            unknown_upload_bytes_per_second=unknown_upload_bytes_per_second,
            replan=ReplanSettings(
                incumbent_discount=self.incumbent_discount,
                dwell_s=self.dwell_s,
                interval_s=self.interval_s,
                gather_s=self.gather_s,
            ),
        )
