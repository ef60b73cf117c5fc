"""Lay a model's tensors on a mesh of devices with three axes, by a rule for each tensor's name.

- data: each device has a copy of all parameters and its own rows of a batch.
- fsdp: each device has its own rows of a batch too, but parameters and optimiser states are divided among these devices
  and gathered for each layer when it is computed (Rajbhandari et al. 2020, "ZeRO", stage 3).
- tensor: the inner size of each layer is divided, and so are heads and the vocabulary (Shoeybi et al. 2019,
  "Megatron-LM", section 3); activations are added up over these devices twice per block, so their links should be fast.
  Experts are stored divided along it. It is the only axis of a rollout engine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from rollcast.policy.config import ModelConfig
from rollcast.policy.lora import A, B
from rollcast.policy.stacking import is_stacked

DATA, FSDP, TENSOR = "data", "fsdp", "tensor"

Axes = str | tuple[str, ...] | None  # the mesh axes that a dimension is divided among; None: it is not divided

_INTO = (FSDP, TENSOR)  # axes of kernels [width, inner], which read the residual stream
# Axes of kernels [inner, width], which write to it. Were their columns divided, the shards that a device gathers would
# not be contiguous, and compilers would copy the stacked tensors of all layers into another layout.
_BACK = ((TENSOR, FSDP), None)
# Axes of kernels [experts, ...]: each device stores whole experts, so that what it gathers and what Muon orthogonalises
# are contiguous matrices.
_BY_EXPERT = ((FSDP, TENSOR), None, None)
# Layers whose kernels are [width, inner], and those whose kernels are [inner, width]. An adapter's A is divided like
# the kernel's rows and its B along the tensor axis like the kernel's columns; the rank is too small to divide.
_READING = ("attention.query", "attention.key", "attention.value", "feed_forward.gate", "feed_forward.up")
_WRITING = ("attention.output", "feed_forward.down")
#: The axes of a tensor's dimensions by the end of its name; a tensor without an entry is copied to every device.
RULES: dict[str, tuple[Axes, ...]] = {
    "embedding": (TENSOR, FSDP),
    "head.kernel": _INTO,
    "attention.query.kernel": _INTO,
    "attention.key.kernel": _INTO,
    "attention.value.kernel": _INTO,
    "attention.output.kernel": _BACK,
    "feed_forward.gate.kernel": _INTO,
    "feed_forward.up.kernel": _INTO,
    "feed_forward.down.kernel": _BACK,
    "feed_forward.expert_gate.kernel": _BY_EXPERT,
    "feed_forward.expert_up.kernel": _BY_EXPERT,
    "feed_forward.expert_down.kernel": _BY_EXPERT,
    **{f"{name}.{end}": axes for name in _READING for end, axes in ((A, (FSDP, None)), (B, (None, TENSOR)))},
    **{f"{name}.{end}": axes for name in _WRITING for end, axes in ((A, ((TENSOR, FSDP), None)), (B, (None, None)))},
    "attention.query.bias": (TENSOR,),
    "attention.key.bias": (TENSOR,),
    "attention.value.bias": (TENSOR,),
}


def tensor_mesh(devices: Sequence[Any]) -> Mesh:
    """Return the mesh of an engine: every layer is divided among all of these devices."""
    shape = (1, 1, len(devices))
    return jax.make_mesh(shape, (DATA, FSDP, TENSOR), axis_types=(AxisType.Auto,) * 3, devices=devices)


def sharding_of(mesh: Mesh, name: str, shape: tuple[int, ...]) -> NamedSharding:
    """Return a tensor's sharding by the end of its name; a dimension that an axis does not divide evenly stays whole.

    The scales of a kernel's blocks or of its moments are sharded like the kernel, and each layer of a stacked tensor
    (rollcast.policy.stacking) like the layer's own.
    """
    axes = next((axes for end, axes in RULES.items() if name.removesuffix("_scale").endswith(end)), ())
    if is_stacked(name):
        axes = (None, *axes)
    fitting = [_fitting(mesh, axis, size) for axis, size in zip(axes, shape, strict=False)]
    return NamedSharding(mesh, PartitionSpec(*fitting) if len(fitting) == len(shape) else PartitionSpec())


def params_shardings(mesh: Mesh, params: Mapping[str, Any]) -> dict[str, NamedSharding]:
    """Return the sharding of each parameter by name."""
    return {name: sharding_of(mesh, name, leaf.shape) for name, leaf in params.items()}


def engine_shardings(mesh: Mesh, config: ModelConfig, params: Mapping[str, Any]) -> dict[str, NamedSharding]:
    """Return the sharding of each parameter by name on an engine's mesh.

    The projections to keys and values are whole where their heads cannot be divided evenly. They are small, and devices
    would exchange parts of heads for every token.
    """
    where = params_shardings(mesh, params)
    if config.key_value_heads % mesh.shape[TENSOR]:
        whole = NamedSharding(mesh, PartitionSpec())
        where |= {name: whole for name in where if ".attention.key." in name or ".attention.value." in name}
    return where


def _fitting(mesh: Mesh, axes: Axes, size: int) -> Axes:
    """Return as many of the axes, from the first on, as divide the dimension evenly; None if none does."""
    own = (axes,) if isinstance(axes, str) else axes or ()
    kept = next(own[:count] for count in range(len(own), -1, -1) if size % _size(mesh, own[:count]) == 0)
    return kept[0] if len(kept) == 1 else kept or None


def _size(mesh: Mesh, axes: Sequence[str]) -> int:
    return math.prod(mesh.shape[axis] for axis in axes)
