"""Compare sensor readings with the owner's ceilings. Pure.

Each ceiling has a gap before work resumes, so that a reading near it does not start and stop work all the time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from peer.limits.readings import Readings


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """Limits on the load of a machine; None: no such limit. A value that cannot be read counts as beyond its limit.

    Args:
        cpu_celsius_max, gpu_celsius_max: work stops above this temperature, and resumes ``celsius_gap`` below it.
        power_watts_max: work stops while all accelerators together draw more; it resumes at 0.9 of this power.
        battery_share_min: on battery, work stops below this charge (0 to 1); 1.0: no work on battery.
        idle_s_min: work starts after this many seconds without user activity.
        others_cpu_share_max: work stops while other processes use more than this share of all cores.
        memory_free_bytes_min, disk_free_bytes_min: work stops below this many free bytes.
    """

    cpu_celsius_max: float | None = None
    gpu_celsius_max: float | None = None
    celsius_gap: float = 5.0
    power_watts_max: float | None = None
    battery_share_min: float | None = None
    idle_s_min: float | None = None
    others_cpu_share_max: float | None = None
    memory_free_bytes_min: float | None = None
    disk_free_bytes_min: float | None = None


_GIB = 2**30
_SHARE_GAP = 0.05  # battery charge above the limit at which work resumes
_RESUME_SHARE = 0.9  # share of a ceiling on power, or on the use by other programs, at which work resumes
_BYTES_GAP = 1.1  # multiple of the least free bytes at which work resumes


class CeilingWatch:
    """Report which ceilings hold work back.

    The object has state: a ceiling that stopped work holds until the reading has passed its gap.
    """

    def __init__(self, ceilings: Ceilings) -> None:
        self._ceilings = ceilings
        self._holding: set[str] = set()

    def reasons(self, readings: Readings) -> tuple[str, ...]:
        """Return why no work may be done now, as texts with figures; empty: work is allowed."""
        found = []
        for name, judge in _JUDGES.items():
            reason = judge(self._ceilings, readings, name in self._holding)
            if reason:
                found.append(reason)
                self._holding.add(name)
            else:
                self._holding.discard(name)
        return tuple(found)


def _unknown(what: str) -> str:
    """Return the reason for a limit without a reading: the owner relies on the limit, so the machine does not work."""
    return f"{what} is limited, but cannot be read on this machine"


def _hot(what: str, celsius: float | None, most: float | None, gap: float, holding: bool) -> str:
    if most is None:
        return ""
    if celsius is None:
        return _unknown(f"the {what}'s temperature")
    if celsius <= (most - gap if holding else most):
        return ""
    return (
        f"{what} at {celsius:.0f} °C, above {most:.0f} °C"
        if celsius > most
        else f"{what} cools down to {most - gap:.0f} °C"
    )


def _cpu_hot(ceilings: Ceilings, now: Readings, holding: bool) -> str:
    return _hot("processor", now.cpu_celsius, ceilings.cpu_celsius_max, ceilings.celsius_gap, holding)


def _gpu_hot(ceilings: Ceilings, now: Readings, holding: bool) -> str:
    return _hot("accelerator", now.gpu_celsius, ceilings.gpu_celsius_max, ceilings.celsius_gap, holding)


def _power(ceilings: Ceilings, now: Readings, holding: bool) -> str:
    most = ceilings.power_watts_max
    if most is None:
        return ""
    if now.power_watts is None:
        return _unknown("power")
    if now.power_watts <= most * (_RESUME_SHARE if holding else 1.0):
        return ""
    return f"accelerators draw {now.power_watts:.0f} W, the limit is {most:.0f} W"


def _battery(ceilings: Ceilings, now: Readings, holding: bool) -> str:
    least = ceilings.battery_share_min
    if least is None or not now.on_battery:
        return ""
    if least >= 1.0:
        return "on battery"
    charge = now.battery_share
    if charge is None:
        return _unknown("the battery's charge")
    if charge >= least + (_SHARE_GAP if holding else 0.0):
        return ""
    return f"battery at {charge:.0%}, below {least:.0%}"


def _in_use(ceilings: Ceilings, now: Readings, _holding: bool) -> str:
    least = ceilings.idle_s_min
    if least is None:
        return ""
    if now.idle_s is None:
        return _unknown("use of the machine by its owner")
    if now.idle_s >= least:
        return ""
    return f"the machine is in use; work begins {least - now.idle_s:.0f} s after the last touch"


def _others(ceilings: Ceilings, now: Readings, holding: bool) -> str:
    most = ceilings.others_cpu_share_max
    share = now.others_cpu_share
    if most is None:
        return ""
    if share is None:
        return _unknown("use of the processor by other programs")
    if share <= most * (_RESUME_SHARE if holding else 1.0):
        return ""
    return f"other programs use {share:.0%} of the processor, the limit is {most:.0%}"


def _free(what: str, free: int | None, least: float | None, holding: bool) -> str:
    if least is None:
        return ""
    if free is None:
        return _unknown(f"free {what}")
    if free >= least * (_BYTES_GAP if holding else 1.0):
        return ""
    return f"{free / _GIB:.1f} GiB of {what} free, the limit is {least / _GIB:.1f} GiB"


def _memory(ceilings: Ceilings, now: Readings, holding: bool) -> str:
    return _free("memory", now.memory_free_bytes, ceilings.memory_free_bytes_min, holding)


def _disk(ceilings: Ceilings, now: Readings, holding: bool) -> str:
    return _free("disk", now.disk_free_bytes, ceilings.disk_free_bytes_min, holding)


_JUDGES: dict[str, Callable[[Ceilings, Readings, bool], str]] = {
    "cpu": _cpu_hot,
    "gpu": _gpu_hot,
    "power": _power,
    "battery": _battery,
    "idle": _in_use,
    "others": _others,
    "memory": _memory,
    "disk": _disk,
}
