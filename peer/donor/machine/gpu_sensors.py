"""Read temperature, power and memory of NVIDIA accelerators through NVML, if it is installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import structlog

log = structlog.get_logger()


class GpuSensors:
    """Readings over all devices; a reading that no device reports is None.

    Args:
        nvml: the module ``pynvml`` (distribution nvidia-ml-py), initialised; None: no accelerator.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml: Any = nvml

    @classmethod
    def here(cls) -> GpuSensors:
        """Return the sensors of this machine."""
        try:
            nvml = importlib.import_module("pynvml")
            nvml.nvmlInit()
        except Exception as error:  # no library, no driver, no device: NVML's errors have a base only where it is there
            log.info("no accelerator reports its temperature", cause=str(error))
            return cls(None)
        return cls(nvml)

    def devices(self) -> list[tuple[str, int, int]]:
        """Return each device's name, and the bytes of its memory in all and free."""
        nvml = self._nvml
        if nvml is None:
            return []
        found = []
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                device = nvml.nvmlDeviceGetHandleByIndex(index)
                memory, name = nvml.nvmlDeviceGetMemoryInfo(device), nvml.nvmlDeviceGetName(device)
            except nvml.NVMLError:  # the device is lost, or not accessible here
                continue
            found.append((name if isinstance(name, str) else name.decode(), int(memory.total), int(memory.free)))
        return found

    def celsius(self) -> float | None:
        """Return the temperature of the hottest device; None if no device reports it."""
        nvml = self._nvml
        read = self._each(lambda device: nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU))
        return max(read, default=None)

    def watts(self) -> float | None:
        """Return the power of all devices together; None if no device reports it."""
        nvml = self._nvml
        read = self._each(lambda device: nvml.nvmlDeviceGetPowerUsage(device) / 1000.0)
        return sum(read) if read else None

    def memory_used_bytes(self, pids: set[int]) -> int | None:
        """Return the bytes that these processes use on all devices; None if no device reports them."""
        nvml = self._nvml

        def used(device: Any) -> float:
            running = nvml.nvmlDeviceGetComputeRunningProcesses(device)
            return float(sum(one.usedGpuMemory or 0 for one in running if one.pid in pids))

        read = self._each(used)
        return int(sum(read)) if read else None

    def _each(self, read: Callable[[Any], float]) -> list[float]:
        if self._nvml is None:
            return []
        found: list[float] = []
        for index in range(self._nvml.nvmlDeviceGetCount()):
            try:
                found.append(float(read(self._nvml.nvmlDeviceGetHandleByIndex(index))))
            except self._nvml.NVMLError:  # this device does not report this reading
                continue
        return found
