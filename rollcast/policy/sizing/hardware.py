"""List the accelerators that people train and generate on, with their memory and the share that a model can use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

GIB = 1 << 30

USABLE_SHARE = 0.9
"""The share of a device's memory that a model can use; the runtime and fragmentation take the rest. jax takes 0.75 on a
GPU unless XLA_PYTHON_CLIENT_MEM_FRACTION=0.95 is set."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """One kind of device. ``devices_max``: the most that a learner can span, in one machine or one slice."""

    name: str
    kind: Literal["consumer", "datacentre", "tpu"]
    memory_gib: float
    devices_max: int

    @property
    def usable_bytes(self) -> int:
        """Return the bytes of one device's memory that a model may use."""
        return int(self.memory_gib * GIB * USABLE_SHARE)


#: Memory as the vendors' data sheets give it, GiB that the driver reports where it differs from the name.
CATALOGUE = (
    Hardware("RTX 3060 12GB", "consumer", 12, 1),
    Hardware("RTX 4080 / 5080 16GB", "consumer", 16, 1),
    Hardware("RTX 3090 / 4090 24GB", "consumer", 24, 4),
    Hardware("RTX 5090 32GB", "consumer", 31.8, 4),
    Hardware("RTX 6000 Ada / L40S 48GB", "datacentre", 45, 8),
    Hardware("RTX PRO 6000 96GB", "datacentre", 95, 8),
    Hardware("T4 16GB", "datacentre", 15, 4),
    Hardware("L4 / A10G 24GB", "datacentre", 22.5, 8),
    Hardware("A100 40GB", "datacentre", 40, 8),
    Hardware("A100 / H100 80GB", "datacentre", 80, 8),
    Hardware("H200 141GB", "datacentre", 140, 8),
    Hardware("B200 180GB", "datacentre", 179, 8),
    Hardware("TPU v4", "tpu", 32, 4096),
    Hardware("TPU v5e", "tpu", 16, 256),
    Hardware("TPU v5p", "tpu", 95, 8960),
    Hardware("TPU v6e", "tpu", 32, 256),
)

#: Dense bfloat16 peak of a device in FLOP/s, without sparsity (the vendors' data sheets), by a part of the name that
#: jax has for its kind; the first part that fits counts.
PEAK_FLOPS = {
    "H100": 989e12,
    "H200": 989e12,
    "A100": 312e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5p": 459e12,
    "TPU v5": 459e12,
    "TPU v6": 918e12,
}


def peak_flops(device_kind: str) -> float | None:
    """Return the dense bfloat16 peak of a kind of device, as jax names it, in FLOP/s; None if it is not known."""
    return next((peak for part, peak in PEAK_FLOPS.items() if part in device_kind), None)
