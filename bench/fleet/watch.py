"""Measure the processor time and memory of a coordinator process, and pin it and its verifiers to cores."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Collection
from pathlib import Path

import psutil

from bench.fleet.process import CoordinatorProcess

SAMPLE_S = 0.5
MEGABYTE = 1e6


class Watch:
    """A watch that samples every SAMPLE_S seconds; processor time is summed over successive coordinator processes."""

    def __init__(self, coordinator: CoordinatorProcess, own: Collection[int], others: Collection[int]) -> None:
        """``own``: cores for the coordinator's threads. ``others``: cores for its verifiers."""
        self._coordinator = coordinator
        self._own = own
        self._others = others
        self._pid: int | None = None
        self._seen_s = 0.0
        self._began_s = 0.0
        self.cpu_s = 0.0
        self.rss_mb = 0.0  # largest value sampled

    def begin(self) -> None:
        """Restart the measurement from zero."""
        self.sample()
        self.cpu_s = self.rss_mb = 0.0
        self._began_s = time.monotonic()

    @property
    def cores(self) -> float:
        """Return the processor time divided by the time since ``begin``."""
        return self.cpu_s / max(1e-9, time.monotonic() - self._began_s)

    async def live(self) -> None:
        """Sample until cancelled."""
        while True:
            self.sample()
            await asyncio.sleep(SAMPLE_S)

    def sample(self) -> None:
        """Add the processor time since the last sample, and pin the processes that have started since."""
        pid = self._coordinator.pid
        if pid is None:
            return
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            if pid != self._pid:
                self._pid, self._seen_s = pid, 0.0
            times = process.cpu_times()
            used_s = times.user + times.system
            self.cpu_s, self._seen_s = self.cpu_s + used_s - self._seen_s, used_s
            self.rss_mb = max(self.rss_mb, process.memory_info().rss / MEGABYTE)
            pin(pid, self._own)
            for child in process.children(recursive=True):
                pin(child.pid, self._others)


def pin(pid: int, cores: Collection[int]) -> None:
    """Restrict every thread of a process to these cores; threads that it starts later inherit this."""
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), cores)
