from __future__ import annotations

from dataclasses import dataclass

import jax
import pytest

from learner.throughput import Throughput, device_memory
from rollcast.policy.sizing.flops import training_flops
from tests.policy.tiny import TINY


@dataclass
class Device:
    device_kind: str
    peak: int = 0
    limit: int = 0

    def memory_stats(self) -> dict[str, int] | None:
        return {"peak_bytes_in_use": self.peak, "bytes_limit": self.limit} if self.peak else None


def test_utilisation_is_the_share_of_the_published_peak_of_all_devices() -> None:
    devices = [Device("NVIDIA H100 80GB HBM3")] * 8
    figures = Throughput(TINY, devices).figures([10, 20], 2.0)
    assert figures["train_tokens_per_s"] == 15.0
    assert figures["mfu"] == pytest.approx(training_flops(TINY, [10, 20]) / (2.0 * 8 * 989e12))
    twice = Throughput(TINY, devices).figures([10, 20], 2.0, passes=2)
    assert twice["mfu"] == 2 * figures["mfu"]
    assert twice["train_tokens_per_s"] == 30.0


def test_a_cpu_has_neither_peak_nor_memory_report() -> None:
    assert set(Throughput(TINY, jax.devices()).figures([10], 1.0)) == {"train_tokens_per_s"}
    assert Throughput(TINY, jax.devices()).figures([10], 0.0) == {}, "compiling may take all of a step"


def test_the_fullest_device_counts() -> None:
    gib = 1 << 30
    found = device_memory([Device("gpu", 2 * gib, 8 * gib), Device("gpu", 6 * gib, 8 * gib), Device("cpu")])
    assert found == {"device_memory_peak_gib": 6.0, "device_memory_peak_share": 0.75}
    assert device_memory([Device("gpu", gib, 0)]) == {"device_memory_peak_gib": 1.0}
