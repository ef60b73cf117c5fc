"""Sample the memory, descriptors, threads and tasks of processes over time, and compute their growth after warm-up."""

from __future__ import annotations

import contextlib
import itertools
import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

HOUR_S = 3600.0
MIB = 1 << 20
_SLOPE_SAMPLES_MIN = 8
_SLOPE_SAMPLES_MOST = 240  # of more samples some are left out, because the number of pairs grows with the square

#: What is watched, in the order of ``Sample``'s fields.
WATCHED = ("rss_mib", "descriptors", "threads", "asyncio_tasks", "trio_tasks", "objects")
#: Growth an hour that counts as a leak. What allocators keep back makes memory wander by some MiB.
LEAK_PER_HOUR = {"rss_mib": 32.0, "descriptors": 6.0, "threads": 3.0, "asyncio_tasks": 6.0, "trio_tasks": 6.0}


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample of one process at one time."""

    at_s: float
    rss_mib: float
    descriptors: float
    threads: float
    asyncio_tasks: float
    trio_tasks: float
    objects: float


@dataclass(slots=True)
class Life:
    """The samples of one process from its start to its end."""

    name: str
    pid: int
    samples: list[Sample] = field(default_factory=list)


class Census:
    """Samples of processes, life by life.

    Args:
        folder: folder in which each process writes its own counts (bench.programs.counted), under ``file_of``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.lives: list[Life] = []
        self._current: dict[str, Life] = {}

    def file_of(self, name: str) -> Path:
        """Return the file in which the process of this name writes its own counts."""
        return self._folder / f"{name}.counts"

    def take(self, name: str, pid: int, now_s: float) -> None:
        """Sample one process; do nothing if it has just ended or has not counted its objects yet."""
        counts = _newest(self.file_of(name))
        if counts is None or counts.get("pid") != pid:
            return
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            with process.oneshot():
                sample = Sample(
                    now_s,
                    process.memory_info().rss / MIB,
                    process.num_fds(),
                    process.num_threads(),
                    counts["asyncio_tasks"],
                    counts["trio_tasks"],
                    counts["objects"],
                )
            life = self._current.get(name)
            if life is None or life.pid != pid:
                life = self._current[name] = Life(name, pid)
                self.lives.append(life)
            life.samples.append(sample)


def slope_per_hour(points: Sequence[tuple[float, float]]) -> float | None:
    """Return the growth an hour: the median slope between all pairs (Theil 1950, Sen 1968); None: too few points."""
    if len(points) < _SLOPE_SAMPLES_MIN:
        return None
    kept = points[:: -(-len(points) // _SLOPE_SAMPLES_MOST)]
    slopes = [
        (later[1] - sooner[1]) / (later[0] - sooner[0])
        for sooner, later in itertools.combinations(kept, 2)
        if later[0] > sooner[0]
    ]
    return statistics.median(slopes) * HOUR_S if slopes else None


def growth(life: Life, *, warm_up_s: float, warm_least_s: float) -> dict[str, float]:
    """Return each watched quantity's growth an hour after the first ``warm_up_s``; empty if the life was too short."""
    if not life.samples or life.samples[-1].at_s - life.samples[0].at_s < warm_up_s + warm_least_s:
        return {}
    warm = [sample for sample in life.samples if sample.at_s >= life.samples[0].at_s + warm_up_s]
    found = {name: slope_per_hour([(one.at_s, getattr(one, name)) for one in warm]) for name in WATCHED}
    return {name: slope for name, slope in found.items() if slope is not None}


def growths(lives: Iterable[Life], *, warm_up_s: float, warm_least_s: float) -> dict[str, dict[str, float]]:
    """Return the growth of each life that lasted, by the process's name (the last of its lives)."""
    found = {life.name: growth(life, warm_up_s=warm_up_s, warm_least_s=warm_least_s) for life in lives}
    return {name: slopes for name, slopes in found.items() if slopes}


def leaking(slopes: dict[str, float]) -> list[str]:
    """Return the watched quantities whose growth counts as a leak."""
    return [name for name, most in LEAK_PER_HOUR.items() if slopes.get(name, 0.0) > most]


def _newest(path: Path) -> dict[str, float] | None:
    """Return the last whole line that a process wrote."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return None
    for line in reversed(lines):
        if line.endswith(b"\n"):
            found: dict[str, float] = json.loads(line)
            return found
    return None
