"""Shapes, initial values and merging of adapters of low rank (Hu et al. 2021, "LoRA", section 4.1).

A run with adapters has two states. The base is a whole snapshot (rollcast.policy.snapshot), published once and never
changed; each later version is the adapters alone: for each target layer of each block ``lora_a`` [inputs, rank] and
``lora_b`` [rank, outputs], in the carrier's dtype. They are published and read like any tensors, and bound together
with the base's (rollcast.policy.params.bind). With noise (rollcast.policy.norm_noise) a version also has scales of
norms, which then replace the base's. No jax is needed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from rollcast.policy.config import ModelConfig
from rollcast.policy.norm_noise import noisy_shapes
from rollcast.policy.shapes import Shapes, parameter_shapes
from rollcast.wire.versions.tensors import TensorSpec, tensor_table

A, B = "lora_a", "lora_b"

_STREAM = 0x6C6F7261  # separates the seed's random numbers from those of the base
_KERNEL = ".kernel"

Array = np.ndarray[Any, Any]


def is_adapter(name: str) -> bool:
    """Return whether a tensor, of one layer or stacked, belongs to an adapter."""
    return name.endswith((f".{A}", f".{B}"))


def adapter_shapes(config: ModelConfig) -> Shapes:
    """Return the shape of every adapter's tensors by name, sorted; empty without adapters."""
    if config.lora is None:
        return {}
    shapes = parameter_shapes(config)
    found: Shapes = {}
    for layer in range(config.layers):
        for target in config.lora.targets:
            inputs, outputs = shapes[f"layers.{layer}.{target}{_KERNEL}"]
            found[f"layers.{layer}.{target}.{A}"] = (inputs, config.lora.rank)
            found[f"layers.{layer}.{target}.{B}"] = (config.lora.rank, outputs)
    return dict(sorted(found.items()))


def version_shapes(config: ModelConfig) -> Shapes:
    """Return the shapes that a version of adapters has by name, sorted: theirs, and with noise those of scales."""
    return dict(sorted((adapter_shapes(config) | noisy_shapes(config)).items()))


def adapter_specs(config: ModelConfig) -> tuple[TensorSpec, ...]:
    """Return the specs that a version of adapters must have."""
    return tensor_table((name, config.carrier_dtype, shape) for name, shape in version_shapes(config).items())


def initial_adapters(config: ModelConfig, seed: int) -> dict[str, Array]:
    """Return adapters f32 by name with which the model computes what its base does: B is 0.

    A is uniform within 1 / sqrt(inputs), as in the library PEFT, whose learning rates then suit. The same seed gives
    the same bits on every platform.
    """
    random = np.random.Generator(np.random.Philox(key=[seed, _STREAM]))

    def one(name: str, shape: tuple[int, ...]) -> Array:
        if name.endswith(B):
            return np.zeros(shape, np.float32)
        return (random.random(shape, np.float32) * 2 - 1) * np.float32(shape[0] ** -0.5)

    return {name: one(name, shape) for name, shape in adapter_shapes(config).items()}


def absent_adapters(config: ModelConfig) -> dict[str, Array]:
    """Return zeros by name, as the rollout reads adapters: with them the base alone computes.

    The base is the first version; a program that was compiled for later ones then serves it too. The zeros take no
    memory.
    """
    nothing = np.zeros((), np.float32 if config.carrier_dtype == "float32" else ml_dtypes.bfloat16)
    return {name: np.broadcast_to(nothing, shape) for name, shape in adapter_shapes(config).items()}


def merged(config: ModelConfig, name: str, kernel: Any, adapters: Mapping[str, Any]) -> Any:
    """Return a kernel in f32 with its adapter added, W + (A B) alpha / rank; any other tensor in f32 as it is.

    Arrays are NumPy's or jax's, of one layer or stacked.
    """
    wide, stem = kernel.astype(np.float32), name.removesuffix(_KERNEL)
    if config.lora is None or f"{stem}.{A}" not in adapters:
        return wide
    a, b = (adapters[f"{stem}.{end}"].astype(np.float32) for end in (A, B))
    return wide + (a @ b) * np.float32(config.lora.scale)
