"""What a machine's owner allows, as configured."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from peer.limits.ceilings import Ceilings
from peer.limits.decide import Rules
from peer.limits.quota import MonthUse, Quota
from peer.limits.schedule import Schedule
from rollcast.runtime.config import ConfigModel

_GB = 1e9
_GIB = 2**30


def _hours(lines: tuple[str, ...]) -> tuple[str, ...]:
    Schedule.parse(lines)
    return lines


Hours = Annotated[tuple[str, ...], Field(max_length=32), AfterValidator(_hours)]


class LimitsConfig(ConfigModel):
    """What this machine may be used for, and when. Nothing set: whenever it runs."""

    compute_hours: Hours = ()
    """Weekly windows of local time in which rollouts may be drawn, as "mon-fri 22:00-07:00"; none: always."""
    network_hours: Hours = ()
    """Weekly windows in which chunks may be sent and received; none: always."""
    upload_gb_month: float | None = Field(None, gt=0.0)
    """GB (1e9 bytes) that may be sent a month, beyond the local network; none: no limit."""
    download_gb_month: float | None = Field(None, gt=0.0)
    """GB that may be received a month, beyond the local network."""
    quota_reset_day: int = Field(1, ge=1, le=28)
    """Day of the month on which both are counted anew."""
    cpu_celsius_max: float | None = Field(None, ge=30.0, le=120.0)
    """Temperature of the processor above which no work is done until it is 5 degrees cooler."""
    gpu_celsius_max: float | None = Field(None, ge=30.0, le=120.0)
    """The same of the accelerator."""
    power_watts_max: float | None = Field(None, gt=0.0)
    """Power of all accelerators together above which work rests."""
    battery_share_min: float | None = Field(None, ge=0.0, le=1.0)
    """On battery, charge below which no work is done; 1: none on battery."""
    idle_minutes_min: float | None = Field(None, gt=0.0)
    """Work only once nobody has touched the machine for so long."""
    others_cpu_share_max: float | None = Field(None, gt=0.0, le=1.0)
    """Share of the processor that other programs may use before work rests."""
    memory_free_gib_min: float | None = Field(None, gt=0.0)
    """Free memory (GiB) below which work rests."""
    disk_free_gib_min: float | None = Field(None, gt=0.0)
    """Free disk (GiB) under the state folder below which work rests."""
    vram_share_max: float | None = Field(None, gt=0.0, le=1.0)
    """Share of an accelerator's memory that the engine may take; none: its own default."""
    polite: bool = True
    """Whether this process has the lowest priority on processor and disk."""

    def rules(self) -> Rules:
        """For peer.limits.decide."""
        return Rules(Schedule.parse(self.compute_hours), Schedule.parse(self.network_hours), self._ceilings())

    def quota(self, use: MonthUse) -> Quota:
        """What may still be moved, with what was counted before."""
        return Quota(
            upload_bytes=_scaled(self.upload_gb_month, _GB),
            download_bytes=_scaled(self.download_gb_month, _GB),
            reset_day=self.quota_reset_day,
            use=use,
        )

    def _ceilings(self) -> Ceilings:
        return Ceilings(
            cpu_celsius_max=self.cpu_celsius_max,
            gpu_celsius_max=self.gpu_celsius_max,
            power_watts_max=self.power_watts_max,
            battery_share_min=self.battery_share_min,
            idle_s_min=_scaled(self.idle_minutes_min, 60.0),
            others_cpu_share_max=self.others_cpu_share_max,
            memory_free_bytes_min=_scaled(self.memory_free_gib_min, _GIB),
            disk_free_bytes_min=_scaled(self.disk_free_gib_min, _GIB),
        )


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value * unit
