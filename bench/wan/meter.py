"""Measure the cost of one broadcast in bytes and processor time, and how late the emulator itself was."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

from bench.wan.machines import Counters, Machines

LATE_MS_MAX = 50.0  # a run in which the emulator was later than this measures the machine, not the system


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one broadcast, between the start and the end of its measurement."""

    source_bytes: int  # sent through the source's uplink
    all_bytes: int  # sent through all uplinks
    drops: int
    cpu_s: float  # processor time of the processes in the network
    emulator_cpu_s: float
    core_s: float  # processor time that all cores had to give
    cpu_share: float  # share of core_s used by everything on the machine
    late_max_ms: float

    @property
    def others_share(self) -> float:
        """Return the share of core_s that other programs used, neither the measured system nor the emulator."""
        used = (self.cpu_s + self.emulator_cpu_s) / self.core_s if self.core_s > 0 else 0.0
        return max(0.0, self.cpu_share - used)

    @property
    def valid(self) -> bool:
        """Whether the emulator kept up."""
        return self.late_max_ms <= LATE_MS_MAX


class Meter:
    """A measurement that starts when the meter is made; ``read`` returns the cost since then."""

    def __init__(self, network: Machines) -> None:
        self._network = network
        self._counters: Counters = network.counters()
        self._cpu_s = network.cpu_s()
        self._emulator_cpu_s = network.emulator_cpu_s()
        self._machine = _machine_s()

    def read(self) -> Cost:
        """Return the cost so far.

        Raises:
            ProcessFailed, WaitTimedOut: see Network.counters.
        """
        before, after = self._counters, self._network.counters()
        busy_s, all_s = (now - then for now, then in zip(_machine_s(), self._machine, strict=True))
        return Cost(
            source_bytes=after.sent_bytes[0] - before.sent_bytes[0],
            all_bytes=sum(after.sent_bytes) - sum(before.sent_bytes),
            drops=after.drops - before.drops,
            cpu_s=self._network.cpu_s() - self._cpu_s,
            emulator_cpu_s=self._network.emulator_cpu_s() - self._emulator_cpu_s,
            core_s=all_s,
            cpu_share=busy_s / all_s if all_s > 0 else 0.0,
            late_max_ms=after.late_max_ms,
        )


def _machine_s() -> tuple[float, float]:
    """Return the seconds that all cores were busy, and the seconds of all cores in total."""
    times = psutil.cpu_times()
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)  # part of user already
    return total - times.idle - getattr(times, "iowait", 0.0), total
