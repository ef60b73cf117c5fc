"""Where arrays lie: a mesh of devices with three axes, and a rule for each tensor by its name (GSPMD).

- data: copies of everything; each has its own rows of a batch.
- fsdp: rows of a batch too, but parameters and optimiser states are divided among these devices and gathered for each
  layer when it is computed (Rajbhandari et al. 2020, "ZeRO", stage 3).
- tensor: the inner size of each layer is divided, and so are heads and the vocabulary (Shoeybi et al. 2019,
  "Megatron-LM", section 3); activations are added up over these devices twice a block, so they should be near.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from learner.config import MeshConfig
from rollcast.runtime.errors import ConfigError

DATA, FSDP, TENSOR = "data", "fsdp", "tensor"
ROWS = (DATA, FSDP)
"""What the rows of a batch are divided among."""

# Kinds of placement remembered: a model has some ten of them.
_PLACEMENTS_MAX = 256

Axes = str | tuple[str, ...] | None  # what a dimension is divided among

_INTO = (FSDP, TENSOR)  # [width, inner]: from the residual stream
_BACK = (TENSOR, FSDP)  # [inner, width]: back into it
#: End of a tensor's name -> axes of its dimensions; what is not named is on every device.
RULES: dict[str, tuple[Axes, ...]] = {
    "embedding": ((TENSOR, FSDP), None),  # by words only: rows of activations lie on fsdp, their width nowhere
    "head.kernel": (None, (TENSOR, FSDP)),
    "attention.query.kernel": _INTO,
    "attention.key.kernel": _INTO,
    "attention.value.kernel": _INTO,
    "attention.output.kernel": _BACK,
    "feed_forward.gate.kernel": _INTO,
    "feed_forward.up.kernel": _INTO,
    "feed_forward.down.kernel": _BACK,
    "attention.query.bias": (TENSOR,),
    "attention.key.bias": (TENSOR,),
    "attention.value.bias": (TENSOR,),
}


def make_mesh(config: MeshConfig, devices: Sequence[Any] | None = None) -> Mesh:
    """The mesh over these devices (default: all), in their order.

    Raises:
        ConfigError: there are fewer devices than it has places, or several processes and not exactly as many.
    """
    found = jax.devices() if devices is None else list(devices)
    shape = (config.data, config.fsdp, config.tensor)
    places = math.prod(shape)
    processes = {device.process_index for device in found}
    if places > len(found) or (len(processes) > 1 and places != len(found)):
        raise ConfigError(
            f"a mesh of {config.data} x {config.fsdp} x {config.tensor} devices does not go with {len(found)} devices",
            cause=f"there are {len(processes)} learner processes with {len(found)} devices in all",
            fix="set mesh.data, mesh.fsdp and mesh.tensor so that their product is the number of devices",
        )
    return jax.make_mesh(shape, (DATA, FSDP, TENSOR), axis_types=(AxisType.Auto,) * 3, devices=found[:places])


def sharding_of(mesh: Mesh, name: str, shape: tuple[int, ...]) -> NamedSharding:
    """Where a tensor lies: by the end of its name; a dimension that an axis does not divide is not divided.

    The scales of a kernel, its blocks' or its moments', lie like the kernel.
    """
    axes = next((axes for end, axes in RULES.items() if name.removesuffix("_scale").endswith(end)), ())
    fitting = [_fitting(mesh, axis, size) for axis, size in zip(axes, shape, strict=False)]
    return NamedSharding(mesh, PartitionSpec(*fitting) if len(fitting) == len(shape) else PartitionSpec())


def _fitting(mesh: Mesh, axes: Axes, size: int) -> Axes:
    """As many of the axes, from the first on, as divide the dimension."""
    own = (axes,) if isinstance(axes, str) else axes or ()
    kept = next(own[:count] for count in range(len(own), -1, -1) if size % _size(mesh, own[:count]) == 0)
    return kept or None


def _size(mesh: Mesh, axes: Sequence[str]) -> int:
    return math.prod(mesh.shape[axis] for axis in axes)


def params_shardings(mesh: Mesh, params: Mapping[str, Any]) -> dict[str, NamedSharding]:
    """Where each parameter lies."""
    return {name: sharding_of(mesh, name, leaf.shape) for name, leaf in params.items()}


def state_shardings(mesh: Mesh, state: Any) -> Any:
    """Where an optimiser's state lies: what belongs to a tensor by name lies like it, the rest on every device."""

    def one(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        names = [str(key.key) for key in path if isinstance(key, jax.tree_util.DictKey)]
        return sharding_of(mesh, names[-1] if names else "", leaf.shape)

    return jax.tree_util.tree_map_with_path(one, state)


def rows_sharding(mesh: Mesh, *, before: int = 0) -> NamedSharding:
    """Rows over data and fsdp; ``before``: dimensions in front of the rows."""
    return NamedSharding(mesh, PartitionSpec(*(None,) * before, ROWS))


def row_shards(mesh: Mesh) -> int:
    """How many parts the rows of a batch are divided into."""
    return _size(mesh, ROWS)


def placed(value: Any, sharding: NamedSharding) -> jax.Array:
    """A host array as a device array that shares no memory with it.

    Where the sharding spans several processes, all of them must call this; the leader's value is sent to the others,
    one array at a time, and theirs only tell shape and dtype.
    """
    if len({device.process_index for device in sharding.device_set}) > 1:
        return _spread(value, sharding)
    host = np.asarray(value)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: np.array(host[index]))


def _spread(value: Any, sharding: NamedSharding) -> jax.Array:
    # As unsigned integers: whatever collective brings the values over, zeros added to them change no bit.
    dtype = np.dtype(f"u{value.dtype.itemsize}")
    lead = jax.process_index() == 0
    own = np.asarray(value).view(dtype) if lead and value.ndim else np.zeros(value.shape, dtype)
    if lead and not value.ndim:
        own = np.asarray(value).reshape(1).view(dtype).reshape(())
    processes = jax.process_count()
    devices = np.array(sorted(jax.devices(), key=lambda device: (device.process_index, device.id)))
    by_process = Mesh(devices.reshape(processes, -1), ("process", "device"), axis_types=(AxisType.Auto,) * 2)
    pieces = NamedSharding(by_process, PartitionSpec("process"))
    stacked = jax.make_array_from_process_local_data(pieces, own[None], (processes, *value.shape))
    array: jax.Array = _first_piece(sharding, np.dtype(value.dtype))(stacked)
    return array


# jax compiles once for each function that it is given: these are the same ones for every tensor of a kind.
@functools.lru_cache(maxsize=_PLACEMENTS_MAX)
def _first_piece(sharding: NamedSharding, dtype: np.dtype[Any]) -> Any:
    return jax.jit(lambda leaf: jax.lax.bitcast_convert_type(leaf[0], dtype), out_shardings=sharding)


def placed_params(mesh: Mesh, params: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Parameters, or a snapshot's tensors, on the mesh: what lies there as it should stays, the rest is `placed`."""
    where = params_shardings(mesh, params)
    return {
        name: leaf
        if isinstance(leaf, jax.Array) and leaf.sharding.is_equivalent_to(where[name], leaf.ndim)
        else placed(leaf, where[name])
        for name, leaf in sorted(params.items())
    }


def everywhere(array: jax.Array) -> jax.Array:
    """The array on each of its mesh's devices; all processes that these belong to must ask for it."""
    replicated: jax.Array = _replicate(array, NamedSharding(array.sharding.mesh, PartitionSpec()))
    return replicated


@functools.partial(jax.jit, static_argnums=1)
def _replicate(array: jax.Array, where: NamedSharding) -> jax.Array:
    return jax.lax.with_sharding_constraint(array, where)
