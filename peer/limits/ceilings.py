"""Ceilings that a machine's owner set, each with a gap before work goes on, so that it does not flap. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from peer.limits.readings import Readings


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """Limits on what a machine is put through; None: no such limit. What cannot be read counts as beyond its limit.

    Args:
        cpu_celsius_max, gpu_celsius_max: work stops above, and goes on ``celsius_gap`` below.
        power_watts_max: of the accelerators together; work goes on at 0.9 of it.
        battery_share_min: on battery, work stops below this charge; 1.0: never on battery.
        idle_s_min: work only once nobody has touched the machine for so long.
        others_cpu_share_max: work stops while other processes use more of all cores than this.
        memory_free_bytes_min, disk_free_bytes_min: work stops below.
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
_SHARE_GAP = 0.05
_GOES_ON_AT = 0.9  # of a ceiling on power, or on the use of others
_BYTES_GAP = 1.1  # times the least free bytes


class CeilingWatch:
    """Which ceilings hold work back. Not pure data: a ceiling that stopped work needs its gap before it lets go."""

    def __init__(self, ceilings: Ceilings) -> None:
        self._ceilings = ceilings
        self._holding: set[str] = set()

    def reasons(self, readings: Readings) -> tuple[str, ...]:
        """Why no work may be done now, in words with figures; empty: it may."""
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
    """A limit that cannot be watched is kept by doing nothing: its owner relies on it."""
    return f"{what} is limited, and cannot be read on this machine"


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
    if now.power_watts <= most * (_GOES_ON_AT if holding else 1.0):
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
    if share <= most * (_GOES_ON_AT if holding else 1.0):
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
