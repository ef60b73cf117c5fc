"""Sensor readings of a machine, taken once a second. Plain data; None where this machine has no such sensor."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """The readings of one moment.

    Args:
        cpu_celsius, gpu_celsius: temperature of the hottest sensor of its kind.
        power_watts: power that all accelerators together draw.
        on_battery: whether the machine runs on its battery; None: it has none, or does not report it.
        battery_share: charge, 0 to 1.
        idle_s: seconds since the owner last used keyboard, mouse or a terminal.
        others_cpu_share: share of all cores (0 to 1) used by processes that are not ours.
        memory_free_bytes, disk_free_bytes: bytes that programs can still take; the disk is that of the state folder.
        memory_used_bytes: resident memory of this process and its children.
        gpu_memory_used_bytes: accelerator memory of this process and its children.
    """

    cpu_celsius: float | None = None
    gpu_celsius: float | None = None
    power_watts: float | None = None
    on_battery: bool | None = None
    battery_share: float | None = None
    idle_s: float | None = None
    others_cpu_share: float | None = None
    memory_free_bytes: int | None = None
    memory_used_bytes: int | None = None
    gpu_memory_used_bytes: int | None = None
    disk_free_bytes: int | None = None
