"""Configure which peers the capacity model switches on, and at what prices."""

from __future__ import annotations

from pydantic import Field

from capacity.replan.events import ReplanSettings
from coordinator.core.events.prices import ActivationSettings, Budget, Mode, Price, StandbyReceives
from rollcast.runtime.config import ConfigModel


class PriceConfig(ConfigModel):
    """Prices of the peers that match all patterns (``*``, ``?`` as in file names). The first match counts."""

    peer_id: str = "*"
    """Pattern for the peer's identity, the only attribute that a peer cannot choose itself."""
    name: str = "*"
    """Pattern for the peer's name."""
    hardware: str = "*"
    """Pattern for the hardware that the peer reports."""
    region: str = "*"
    """Pattern for the peer's region."""
    usd_per_hour: float = Field(ge=0.0, le=1e6)
    """Price in USD per hour while the peer is switched on."""
    egress_usd_per_gb: float = Field(0.0, ge=0.0, le=1e3)
    """Price in USD per GB that the peer sends to other peers (1 GB = 1e9 bytes)."""
    preemptions_per_hour: float = Field(0.0, ge=0.0, le=60.0)
    """Preemptions of such a machine by its provider, on average per hour."""


class CapacityConfig(ConfigModel):
    """Activation by the capacity model: the cheapest set of peers that keeps the learner busy (docs/activation.md)."""

    mode: Mode = "off"
    """off: every peer works; advise: the status shows what the model would switch; act: the model switches peers."""
    prices: list[PriceConfig] = Field(default_factory=list, max_length=256)
    """Prices by peer. A peer that no entry matches counts as donated: free, and on unless it slows down the others."""
    usd_per_hour_max: float | None = Field(None, ge=0.0)
    """Most that active peers and their traffic may cost, in USD per hour; none: no limit."""
    origin_egress_usd_per_gb: float = Field(0.0, ge=0.0)
    """Price in USD per GB that the origin sends."""
    learner_usd_per_hour: float = Field(0.0, ge=0.0)
    """Price of the learner's machines in USD per hour: with it the reserve of peers is as large as it pays; 0: fixed
    by headroom."""
    headroom: float = Field(1.15, ge=1.0, le=4.0)
    """Rollouts per second to provide, as a multiple of what the learner needs."""
    share_without_a_region: float = Field(0.0, ge=0.0, le=1.0)
    """Share of the needed rate that must remain when any one region fails; 0: no such requirement."""
    incumbent_discount: float = Field(0.15, ge=0.0, lt=1.0)
    """Share by which another peer must be cheaper before it replaces one that is on; start_s is added, in hours."""
    dwell_s: float = Field(300.0, ge=0.0)
    """Seconds for which a peer stays on or off after it was switched."""
    interval_s: float = Field(600.0, gt=0.0)
    """Seconds between two plans when no event triggers one."""
    start_s: float = Field(0.0, ge=0.0)
    """Seconds from switching a peer on to its first rollouts, minutes for machines at providers: a peer that it
    replaces stays on as long, unless usd_per_hour_max is set."""
    gather_s: float = Field(2.0, ge=0.0)
    """Seconds for which triggers are collected before planning: joins, leaves, changed prices, speeds or S."""
    standby_receives: StandbyReceives = "cheap"
    """Whether standby peers keep receiving versions, so that they can start at once; cheap: if the traffic is cheap."""

    def settings(
        self, *, unknown_upload_bytes_per_second: float, usd_total_max: float | None = None
    ) -> ActivationSettings:
        """Return these settings in the core's form.

        ``usd_total_max`` is the run's budget for workers at providers in USD; None means no limit.
        """
        return ActivationSettings(
            mode=self.mode,
            prices=tuple(Price(**one.model_dump()) for one in self.prices),
            origin_egress_usd_per_gb=self.origin_egress_usd_per_gb,
            learner_usd_per_hour=self.learner_usd_per_hour,
            budget=Budget(usd_per_hour_max=self.usd_per_hour_max, usd_total_max=usd_total_max),
            headroom=self.headroom,
            share_without_a_region=self.share_without_a_region,
            standby_receives=self.standby_receives,
            unknown_upload_bytes_per_second=unknown_upload_bytes_per_second,
            replan=ReplanSettings(
                incumbent_discount=self.incumbent_discount,
                dwell_s=self.dwell_s,
                interval_s=self.interval_s,
                start_s=self.start_s,
                gather_s=self.gather_s,
            ),
        )
