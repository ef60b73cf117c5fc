"""Configuration of what a machine's owner allows."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

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


def _as_list(given: Any) -> Any:
    """Return what an owner types for one window, or for none, as a list: `compute_hours=22:00-07:00`."""
    return () if given is None else (given,) if isinstance(given, str) else given


Hours = Annotated[tuple[str, ...], Field(max_length=32), AfterValidator(_hours), BeforeValidator(_as_list)]


class LimitsConfig(ConfigModel):
    """The owner's limits on the use of this machine. With no limit set it works whenever it runs."""

    compute_hours: Hours = ()
    """Weekly windows of local time in which rollouts may be generated, such as "mon-fri 22:00-07:00"; none: always."""
    network_hours: Hours = ()
    """Weekly windows of local time in which chunks may be sent and received; none: always."""
    upload_gb_month: float | None = Field(None, gt=0.0)
    """Monthly upload quota in GB (1e9 bytes), the local network not counted; none: no limit."""
    download_gb_month: float | None = Field(None, gt=0.0)
    """Monthly download quota in GB (1e9 bytes), the local network not counted; none: no limit."""
    quota_reset_day: int = Field(1, ge=1, le=28)
    """Day of the month on which both quotas start anew."""
    cpu_celsius_max: float | None = Field(None, ge=30.0, le=120.0)
    """Processor temperature, in degrees Celsius, above which work pauses until it is 5 degrees cooler; none: no
    limit."""
    gpu_celsius_max: float | None = Field(None, ge=30.0, le=120.0)
    """Accelerator temperature, in degrees Celsius, above which work pauses until it is 5 degrees cooler; none: no
    limit."""
    power_watts_max: float | None = Field(None, gt=0.0)
    """Power of all accelerators together, in watts, above which work pauses; none: no limit."""
    battery_share_min: float | None = Field(None, ge=0.0, le=1.0)
    """Battery charge (0 to 1) below which work pauses on battery; 1: no work on battery at all, none: no limit."""
    idle_minutes_min: float | None = Field(None, gt=0.0)
    """Minutes without user activity after which work starts; none: work also while the machine is in use."""
    others_cpu_share_max: float | None = Field(None, gt=0.0, le=1.0)
    """Share of the processor used by other programs (0 to 1) above which work pauses; none: no limit."""
    memory_free_gib_min: float | None = Field(None, gt=0.0)
    """Free memory in GiB below which work pauses; none: no limit."""
    disk_free_gib_min: float | None = Field(None, gt=0.0)
    """Free space in GiB on the disk of the state folder below which work pauses; none: no limit."""
    vram_share_max: float | None = Field(None, gt=0.0, le=1.0)
    """Share of each accelerator's memory (0 to 1) that the engine may take; none: the engine's own default."""
    polite: bool = True
    """Whether this process runs at the lowest priority on processor and disk."""

    def rules(self) -> Rules:
        """Return the schedules and ceilings in the form that peer.limits.decide takes."""
        return Rules(Schedule.parse(self.compute_hours), Schedule.parse(self.network_hours), self._ceilings())

    def quota(self, use: MonthUse) -> Quota:
        """Return the monthly quotas in bytes, starting from what was counted so far this month."""
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
