from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from peer.donor.machine.gpu_sensors import GpuSensors


class NVMLError(Exception):
    pass


class FakeNvml:
    """Two devices; the second does not tell its power."""

    NVML_TEMPERATURE_GPU = 0
    NVMLError = NVMLError

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetTemperature(self, device: int, _sensor: int) -> int:
        return 60 + 10 * device

    def nvmlDeviceGetPowerUsage(self, device: int) -> int:
        if device:
            raise NVMLError("not supported")
        return 250_000

    def nvmlDeviceGetComputeRunningProcesses(self, device: int) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=7, usedGpuMemory=100), SimpleNamespace(pid=8 + device, usedGpuMemory=None)]


def test_the_hottest_device_and_the_power_of_all() -> None:
    sensors = GpuSensors(FakeNvml())
    assert sensors.celsius() == 70.0
    assert sensors.watts() == 250.0
    assert sensors.memory_used_bytes({7, 9}) == 200
    assert sensors.memory_used_bytes({1}) == 0


def test_without_an_accelerator_nothing_is_told() -> None:
    sensors = GpuSensors(None)
    assert (sensors.celsius(), sensors.watts(), sensors.memory_used_bytes({1})) == (None, None, None)


def test_a_machine_without_a_driver_has_no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoDriver(FakeNvml):
        def nvmlInit(self) -> None:
            raise NVMLError("driver not loaded")

    monkeypatch.setitem(sys.modules, "pynvml", NoDriver())
    assert GpuSensors.here().watts() is None
