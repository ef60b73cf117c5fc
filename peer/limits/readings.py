"""What a machine says about itself, once a second. Plain data; None where this machine does not tell."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """One look at the machine.

    Args:
        cpu_celsius, gpu_celsius: of the hottest sensor of its kind.
        power_watts: that the accelerators draw together.
        on_battery: whether it runs on its battery; None: it has none.
        battery_share: charge, 0 to 1.
        idle_s: since the owner last touched keyboard or mouse, or a terminal.
        others_cpu_share: of all cores, used by processes that are not ours.
        memory_free_bytes, disk_free_bytes: for new use; the disk is that of the state folder.
        memory_used_bytes: resident, of this process and its children.
        gpu_memory_used_bytes: by this process and its children.
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
