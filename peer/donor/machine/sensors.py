"""Read the machine's sensors: temperatures, power, battery, its owner's presence, memory and disk.

Only Linux was tested; psutil reads some of this on macOS too. Nothing here needs more than an ordinary user's rights.
A reading that the machine does not report is None.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from peer.donor.machine.gpu_sensors import GpuSensors
from peer.donor.machine.owner_presence import idle_s
from peer.limits.readings import Readings

_CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "soc_thermal", "acpitz")
_SUPPLIES = Path("/sys/class/power_supply")  # of Linux
_IDLE_LOOK_S = 5.0  # between two checks for the owner, because they start processes
_FAMILY_LOOK_S = 10.0  # between two searches for child processes, because they read the whole process table


class Sensors:
    """The sensors of this machine. Call ``read`` from time to time, always from the same thread.

    Shares are of the time since the last call, or since the object was made.

    Args:
        disk: a folder on the file system whose free bytes are read.
        wants_idle: see the attribute.
        find_idle_s: see peer.donor.machine.owner_presence; only called if ``wants_idle``.
    """

    def __init__(
        self,
        disk: Path,
        gpu: GpuSensors,
        *,
        wants_idle: bool = True,
        find_idle_s: Callable[[], float | None] = idle_s,
    ) -> None:
        self._disk = disk
        self._gpu = gpu
        self.wants_idle = wants_idle
        """Whether to check for the owner's presence."""
        self._find_idle_s = find_idle_s
        self._idle: float | None = None
        self._idle_looked_s = float("-inf")
        self._me = psutil.Process()
        self._found_family: list[psutil.Process] = [self._me]
        self._family_looked_s = float("-inf")
        self._cpu_before = self._cpu_now(self._found_family)

    def read(self) -> Readings:
        """Return the readings of this moment. A missing sensor is no error."""
        family = self._family()
        battery = _battery()
        gpu = self._gpu
        return Readings(
            cpu_celsius=_cpu_celsius(),
            gpu_celsius=gpu.celsius(),
            power_watts=gpu.watts(),
            on_battery=None if battery is None or battery.power_plugged is None else not battery.power_plugged,
            battery_share=None if battery is None else battery.percent / 100.0,
            idle_s=self._idle_s(),
            others_cpu_share=self._others_cpu_share(family),
            memory_free_bytes=psutil.virtual_memory().available,
            memory_used_bytes=sum(_resident_bytes(one) for one in family),
            gpu_memory_used_bytes=gpu.memory_used_bytes({one.pid for one in family}),
            disk_free_bytes=shutil.disk_usage(self._disk).free,
        )

    def _family(self) -> list[psutil.Process]:
        now = time.monotonic()
        if now - self._family_looked_s >= _FAMILY_LOOK_S:
            self._family_looked_s, self._found_family = now, [self._me]
            with contextlib.suppress(psutil.Error):
                self._found_family += self._me.children(recursive=True)
        return self._found_family

    def _idle_s(self) -> float | None:
        now = time.monotonic()
        if self.wants_idle and now - self._idle_looked_s >= _IDLE_LOOK_S:
            self._idle_looked_s, self._idle = now, self._find_idle_s()
        return self._idle

    @staticmethod
    def _cpu_now(family: list[psutil.Process]) -> tuple[float, float, float]:
        """Return seconds since the machine's start: of all cores, of busy ones, and of this peer."""
        times = psutil.cpu_times()
        total_s = float(sum(times[:8]))  # guests are counted in user and nice already
        busy_s = total_s - times.idle - getattr(times, "iowait", 0.0)
        return total_s, busy_s, sum(_cpu_s(one) for one in family)

    def _others_cpu_share(self, family: list[psutil.Process]) -> float | None:
        """Return the share of all cores that other processes used since the last call; None if no time passed."""
        before, now = self._cpu_before, self._cpu_now(family)
        self._cpu_before = now
        if now[0] <= before[0]:
            return None
        ours_s = max(0.0, now[2] - before[2])
        return min(1.0, max(0.0, (now[1] - before[1] - ours_s) / (now[0] - before[0])))


def _cpu_celsius() -> float | None:
    sensors: dict[str, list[Any]] = getattr(psutil, "sensors_temperatures", dict)()
    for name in _CPU_SENSORS:
        if sensors.get(name):
            return max(float(one.current) for one in sensors[name])
    return None


def _battery() -> Any | None:
    """Return the machine's battery; None if it has none. psutil would return that of a wireless mouse instead."""
    if _SUPPLIES.is_dir() and not any(map(_powers_the_machine, _SUPPLIES.iterdir())):
        return None
    return psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None


def _powers_the_machine(supply: Path) -> bool:
    """Whether this is a battery, and not one of a device beside the machine."""
    with contextlib.suppress(OSError):
        if (supply / "type").read_text().strip() != "Battery":
            return False
        return not (supply / "scope").exists() or (supply / "scope").read_text().strip() != "Device"
    return False


def _resident_bytes(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.Error):
        return int(process.memory_info().rss)
    return 0


def _cpu_s(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.Error):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0
