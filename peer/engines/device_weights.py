"""Put versions on the jax devices: two where there is room, or one that the next version replaces tensor by tensor."""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Mapping
from typing import Any, Literal

import jax
import numpy as np
import structlog

from rollcast.policy.params import Params
from rollcast.wire.versions.state_hash import StateHash

VersionsOnDevice = Literal["auto", "one", "two"]

_PIECE_BYTES = 4 << 20  # of a tensor that is copied from a device at a time

_log = structlog.get_logger()


class DeviceWeights:
    """One version's tensors by name: NumPy arrays in host memory until they are put on the devices.

    Args:
        base: the frozen weights that the tensors are adapters of, which all versions share; None: they are all.
        where: the sharding of each tensor by name, on several devices; a tensor without one is for the default device.
    """

    def __init__(
        self, tensors: Params, base: DeviceWeights | None = None, where: Mapping[str, Any] | None = None
    ) -> None:
        self.tensors = tensors
        self.base = base
        self.on_device = False
        self.staged_hash = b""
        """The state's hash as it was read from where the tensors lay first: on the devices, or in host memory."""
        self._where = where or {}

    @property
    def params(self) -> Params:
        """Return what the model computes with: the tensors and the base's."""
        return self.tensors if self.base is None else {**self.base.tensors, **self.tensors}

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def put(self, name: str) -> None:
        """Copy a tensor to its devices, each of which gets its own share alone; return once it is there."""
        self.tensors[name] = jax.block_until_ready(jax.device_put(self.tensors[name], self._where.get(name)))


class DeviceRoom:
    """The devices' memory for versions.

    With room for one, a version that arrives stays in host memory. The slice that first generates with it frees each
    tensor of the version before and copies the new one into its place, so that the devices never hold more than one
    copy of the weights; the cache of keys and values stays where it is. Nothing is generated meanwhile: 16 GB, an 8B
    model in bfloat16, take 0.5 s at 32 GB/s, which is PCIe 4.0 x16 at best. Every copy is logged with its seconds.

    Args:
        memory_bytes: bytes of a device that this process may use; None: as the device says, if it does.
    """

    def __init__(self, versions: VersionsOnDevice, memory_bytes: int | None = None) -> None:
        self._versions = versions
        self._memory_bytes = memory_bytes
        # Weak, so that a version which the engine and its generations drop is freed before the next is copied.
        self._newest: weakref.ref[DeviceWeights] | None = None

    @property
    def memory_bytes(self) -> int | None:
        """Bytes of a device that this process may use; None if the device does not say."""
        return self._memory_bytes or _device_bytes()

    def holds_two(self, peak_bytes: int) -> bool:
        """Return whether two versions are on the devices at a time.

        peak_bytes: what two versions and the work need on each device.
        """
        if self._versions != "auto":
            return self._versions == "two"
        return self.memory_bytes is None or peak_bytes <= self.memory_bytes

    def takes_beside(self, peak_bytes: int) -> bool:
        """Return whether a version that arrives is put on the devices at once; see holds_two."""
        return self._newest is None or self.holds_two(peak_bytes)

    def place(self, weights: DeviceWeights) -> None:
        """Copy a version to the devices, beside what is there."""
        self._copy(weights, {})

    def place_base(self, base: DeviceWeights) -> None:
        """Copy the frozen weights to the devices, where they stay whichever version takes the place of another."""
        newest = self._newest
        self.place(base)
        self._newest = newest

    def use(self, weights: DeviceWeights) -> tuple[Params, bool]:
        """Return what a version computes with on the devices, and whether it has just been copied there.

        A version that waits on the host takes the place of the one before.
        """
        if weights.on_device:
            return weights.params, False
        present = None if self._newest is None else self._newest()
        leaving: Params = {}
        if present is not None:
            leaving, present.tensors, present.on_device = present.tensors, {}, False
        self._copy(weights, leaving)
        return weights.params, True

    def _copy(self, weights: DeviceWeights, leaving: Params) -> None:
        """Copy a version to the devices, and free each of the ``leaving`` tensors before one of its name is copied."""
        begun_s = time.monotonic()
        for name in [name for name in leaving if name not in weights.tensors]:
            leaving.pop(name).delete()
        for name in weights.tensors:
            if name in leaving:
                leaving.pop(name).delete()  # whoever still refers to it
            weights.put(name)
        weights.on_device, self._newest = True, weakref.ref(weights)
        seconds = round(time.monotonic() - begun_s, 3)
        _log.info("version on the device", size_bytes=weights.size_bytes, seconds=seconds)


def read_back(tensors: Params) -> bytes:
    """Return the BLAKE3 hash of the state that these tensors hold, wherever they are; memory holds one of them more.

    Of several devices that hold the same share the first one is read.
    """
    digest = StateHash(all_cores=True)
    for name in sorted(tensors):
        digest.update(_on_host(tensors[name]).reshape(-1).view(np.uint8).data)
    return digest.digest()


def _on_host(tensor: Any) -> np.ndarray[Any, Any]:
    """Return a tensor in host memory. Large ones are copied in pieces: jax keeps what it copies of a whole array."""
    if isinstance(tensor, np.ndarray):
        return np.ascontiguousarray(tensor)
    whole = np.empty(tensor.shape, tensor.dtype)
    for shard in tensor.addressable_shards:
        if shard.replica_id:
            continue
        if shard.data.nbytes <= _PIECE_BYTES:
            whole[shard.index] = shard.data
            continue
        own, rows = whole[shard.index], shard.data.shape[0]
        take = max(1, rows * _PIECE_BYTES // shard.data.nbytes)
        for start in (min(place, rows - take) for place in range(0, rows, take)):
            own[start : start + take] = _rows(shard.data, start, take)
    return whole


@functools.partial(jax.jit, static_argnums=2)
def _rows(array: jax.Array, start: int, count: int) -> jax.Array:
    return jax.lax.dynamic_slice_in_dim(array, start, count)


def _device_bytes() -> int | None:
    """Return the bytes of a device that this process may use; None if the device does not say."""
    stats = jax.local_devices()[0].memory_stats()
    return None if stats is None else stats.get("bytes_limit")
