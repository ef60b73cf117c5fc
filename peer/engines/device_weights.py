"""Put versions on the jax device: two where there is room, or one after the other."""

from __future__ import annotations

import time
import weakref
from typing import Literal

import jax
import structlog

from rollcast.policy.params import Params

VersionsOnDevice = Literal["auto", "one", "two"]

_log = structlog.get_logger()


class DeviceWeights:
    """One version's tensors by name: NumPy arrays in host memory until they are put on the device.

    Args:
        base: the frozen weights that the tensors are adapters of, which all versions share; None: they are all.
    """

    def __init__(self, tensors: Params, base: DeviceWeights | None = None) -> None:
        self.tensors = tensors
        self.base = base
        self.on_device = False

    @property
    def params(self) -> Params:
        """Return what the model computes with: the tensors and the base's."""
        return self.tensors if self.base is None else {**self.base.tensors, **self.tensors}

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


class DeviceRoom:
    """The device's memory for versions.

    With room for one, a version that arrives stays in host memory. The slice that first generates with it frees the
    version before and copies it. Nothing is generated meanwhile: 16 GB, an 8B model in bfloat16, take 0.5 s at 32 GB/s,
    which is PCIe 4.0 x16 at best. Every copy is logged with its seconds.

    Args:
        memory_bytes: bytes of the device that this process may use; None: as the device says, if it does.
    """

    def __init__(self, versions: VersionsOnDevice, memory_bytes: int | None = None) -> None:
        self._versions = versions
        self._memory_bytes = memory_bytes
        # Weak, so that a version which the engine and its generations drop is freed before the next is copied.
        self._newest: weakref.ref[DeviceWeights] | None = None

    def takes_beside(self, peak_bytes: int) -> bool:
        """Return whether a version that arrives is put on the device at once.

        peak_bytes: what two versions and the work need.
        """
        if self._newest is None or self._versions == "two":
            return True
        if self._versions == "one":
            return False
        room = self._memory_bytes or _device_bytes()
        return room is None or peak_bytes <= room

    def place(self, weights: DeviceWeights) -> None:
        """Copy a version to the device, beside what is there."""
        begun_s = time.monotonic()
        weights.tensors = jax.block_until_ready(jax.device_put(weights.tensors))
        weights.on_device, self._newest = True, weakref.ref(weights)
        seconds = round(time.monotonic() - begun_s, 3)
        _log.info("version on the device", size_bytes=weights.size_bytes, seconds=seconds)

    def place_base(self, base: DeviceWeights) -> None:
        """Copy the frozen weights to the device, where they stay whichever version takes the place of another."""
        newest = self._newest
        self.place(base)
        self._newest = newest

    def use(self, weights: DeviceWeights) -> Params:
        """Return a version's tensors on the device; one that waits on the host takes the place of the one before."""
        if not weights.on_device:
            present = None if self._newest is None else self._newest()
            if present is not None:
                _free(present)
            self.place(weights)
        return weights.params


def _free(weights: DeviceWeights) -> None:
    """Free a version's memory on the device, whoever still refers to it."""
    for tensor in weights.tensors.values():
        tensor.delete()
    weights.tensors, weights.on_device = {}, False


def _device_bytes() -> int | None:
    """Return the bytes of the device that this process may use; None if the device does not say."""
    stats = jax.local_devices()[0].memory_stats()
    return None if stats is None else stats.get("bytes_limit")
