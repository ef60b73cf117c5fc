"""What a figure was measured on."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from rollcast.runtime.version import software_version


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a benchmark returns: the settings it ran with, and its figures by key."""

    settings: dict[str, Any]
    figures: dict[str, float]


def describe_machine() -> dict[str, Any]:
    """Cores, memory, processor, Python and our own version; nothing that names the host."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "processor": _processor(),
        "python": platform.python_version(),
        "rollcast": software_version(),
    }


def _processor() -> str:
    cpu_info = Path("/proc/cpuinfo")
    if cpu_info.exists():
        for line in cpu_info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
