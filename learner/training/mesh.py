"""Place arrays on a mesh of devices with three axes, by a rule for each tensor's name (GSPMD), and gather them.

The axes and the rules are those of rollcast.policy.mesh.

A tensor may be divided among the devices of many hosts, none of which could hold all of it: some rows of each shard are
gathered, or sent, at a time.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from learner.config import MeshConfig
from rollcast.policy.mesh import DATA, FSDP, TENSOR, params_shardings, sharding_of
from rollcast.policy.stacking import stacked
from rollcast.runtime.errors import ConfigError

ROWS = (DATA, FSDP)
"""The axes that the rows of a batch are divided among."""

# The kinds of placement whose compiled functions are cached; a model has some ten of them.
_PLACEMENTS_MAX = 256
_STACKINGS_MAX = 64  # the base of adapters is stacked a kind of tensor at a time

Rows = np.ndarray[Any, Any]
Shapes = tuple[tuple[str, tuple[int, ...], np.dtype[Any]], ...]

PIECE_BYTES = 2 << 20
"""Approximate limit on the bytes of a tensor that are sent to other processes, or gathered from them, at a time."""


def make_mesh(config: MeshConfig, devices: Sequence[Any] | None = None) -> Mesh:
    """Return the mesh over these devices (None: all), in their order.

    Raises:
        ConfigError: there are fewer devices than the mesh has places, or several processes whose devices are not
            exactly as many as its places.
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


def state_shardings(mesh: Mesh, state: Any) -> Any:
    """Return the shardings of an optimiser's state: a named tensor's lies like the tensor, the rest on every device."""

    def one(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        names = [str(key.key) for key in path if isinstance(key, jax.tree_util.DictKey)]
        return sharding_of(mesh, names[-1] if names else "", leaf.shape)

    return jax.tree_util.tree_map_with_path(one, state)


def rows_sharding(mesh: Mesh, *, before: int = 0) -> NamedSharding:
    """Return the sharding of rows over data and fsdp; ``before`` is the number of dimensions in front of the rows."""
    return NamedSharding(mesh, PartitionSpec(*(None,) * before, ROWS))


def row_shards(mesh: Mesh) -> int:
    """Return how many parts the rows of a batch are divided into."""
    return math.prod(mesh.shape[axis] for axis in ROWS)


def placed(value: Any, sharding: NamedSharding) -> jax.Array:
    """Copy a host array, or views of a file, to devices, each of which reads its own slice alone.

    The result shares no memory with the value. If the sharding spans several processes, all of them must call this; the
    leader's value is sent to the others, about `PIECE_BYTES` at a time, and only shape and dtype of their own value are
    used.
    """
    if len({device.process_index for device in sharding.device_set}) > 1:
        return _spread(value, sharding)
    host = np.asarray(value)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: np.array(host[index]))


def _spread(value: Any, sharding: NamedSharding) -> jax.Array:
    """Place the leader's value on the devices of all processes, without any device holding all of it."""
    # The values travel as unsigned integers: a collective that adds the others' zeros to them then changes no bit.
    dtype = np.dtype(value.dtype)
    lead = jax.process_index() == 0
    bits = np.asarray(value).reshape(value.shape or (1,)).view(_bits_of(dtype)) if lead else None
    if not value.ndim or value.nbytes <= PIECE_BYTES:
        return _sent(bits, value.shape, sharding, dtype)
    whole = _zeros(value.shape, _bits_of(dtype), sharding)
    own_rows, take = rows_at_a_time(value, sharding)
    shards = value.shape[0] // own_rows
    for start in range(0, own_rows, take):
        start = min(start, own_rows - take)
        shape = (shards * take, *value.shape[1:])
        piece = None
        if bits is not None:
            piece = bits.reshape(shards, own_rows, *value.shape[1:])[:, start : start + take].reshape(shape)
        whole = _with_rows(whole, _sent(piece, shape, sharding, _bits_of(dtype)), start, sharding)
    array: jax.Array = _as_dtype(whole, dtype)
    return array


def rows_at_a_time(array: Any, sharding: NamedSharding) -> tuple[int, int]:
    """Return the rows of a shard, and how many of them to move at a time: `PIECE_BYTES` of all shards together."""
    own_rows = sharding.shard_shape(array.shape)[0]
    return own_rows, min(own_rows, max(1, PIECE_BYTES // (array.nbytes // own_rows)))


def _bits_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(f"u{dtype.itemsize}")


def _sent(bits: Any, shape: tuple[int, ...], sharding: NamedSharding, dtype: np.dtype[Any]) -> jax.Array:
    """Place the leader's bits (None in the other processes) as an array of this shape and dtype on all devices.

    It returns once they are there, so that one piece is under way at a time. On CPUs several programs with collectives
    could wait for each other forever (learner.checkpoints.fingerprints).
    """
    own = np.zeros(shape, _bits_of(dtype)) if bits is None else bits.reshape(shape)
    processes = jax.process_count()
    devices = np.array(sorted(jax.devices(), key=lambda device: (device.process_index, device.id)))
    by_process = Mesh(devices.reshape(processes, -1), ("process", "device"), axis_types=(AxisType.Auto,) * 2)
    pieces = NamedSharding(by_process, PartitionSpec("process"))
    stacked = jax.make_array_from_process_local_data(pieces, own[None], (processes, *shape))
    array: jax.Array = jax.block_until_ready(_first_piece(sharding, dtype)(stacked))
    return array


# jax compiles once per function object, so the functions are cached and shared by every tensor of a kind.
@functools.lru_cache(maxsize=_PLACEMENTS_MAX)
def _first_piece(sharding: NamedSharding, dtype: np.dtype[Any]) -> Any:
    return jax.jit(lambda leaf: jax.lax.bitcast_convert_type(leaf[0], dtype), out_shardings=sharding)


def _zeros(shape: tuple[int, ...], dtype: np.dtype[Any], sharding: NamedSharding) -> jax.Array:
    nothing = np.zeros((), dtype)
    return jax.make_array_from_callback(shape, sharding, lambda index: np.array(np.broadcast_to(nothing, shape)[index]))


@functools.partial(jax.jit, static_argnums=3, donate_argnums=0)
def _with_rows(whole: jax.Array, rows: jax.Array, start: int, where: NamedSharding) -> jax.Array:
    """Replace rows [start, start + take) of every shard by those of ``rows``, each on the shard's own device."""

    def replaced(shard: jax.Array, own: jax.Array, start: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_slice_in_dim(shard, own, start, 0)

    specs = (where.spec, where.spec, PartitionSpec())
    return jax.shard_map(replaced, mesh=where.mesh, in_specs=specs, out_specs=where.spec)(whole, rows, start)


@functools.partial(jax.jit, static_argnums=1, donate_argnums=0)
def _as_dtype(bits: jax.Array, dtype: np.dtype[Any]) -> jax.Array:
    return jax.lax.bitcast_convert_type(bits, dtype)


def moved(value: Any, sharding: NamedSharding) -> jax.Array:
    """Return the value `placed`, or the value itself where it already has the sharding."""
    if isinstance(value, jax.Array) and value.sharding.is_equivalent_to(sharding, value.ndim):
        return value
    return placed(value, sharding)


def placed_params(mesh: Mesh, params: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Place parameters, or a snapshot's tensors, on the mesh; those that already have their sharding are not copied."""
    where = params_shardings(mesh, params)
    return {name: moved(leaf, where[name]) for name, leaf in sorted(params.items())}


def stacked_params(mesh: Mesh, params: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Stack the layers of parameters that are placed on the mesh; memory holds them twice while this runs."""
    result: dict[str, jax.Array] = _stacking(mesh, shapes_of(params))(dict(params))
    return result


# jax keeps what it found out about each function object that it was given, so all versions share one.
@functools.lru_cache(maxsize=_STACKINGS_MAX)
def _stacking(mesh: Mesh, shapes: Shapes) -> Any:
    return jax.jit(stacked, out_shardings=params_shardings(mesh, jax.eval_shape(stacked, structs(shapes))))


def shapes_of(params: Mapping[str, Any]) -> Shapes:
    """Return names, shapes and dtypes of parameters: the key of what is compiled for them."""
    return tuple((name, leaf.shape, leaf.dtype) for name, leaf in params.items())


def structs(shapes: Shapes) -> dict[str, jax.ShapeDtypeStruct]:
    """Return parameters of these names, shapes and dtypes, without values."""
    return {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape, dtype in shapes}


def everywhere(array: jax.Array) -> jax.Array:
    """Return the array replicated on each of its mesh's devices; all processes with such a device must call this."""
    replicated: jax.Array = _replicate(array, NamedSharding(array.sharding.mesh, PartitionSpec()))
    return replicated


@functools.partial(jax.jit, static_argnums=1)
def _replicate(array: jax.Array, where: NamedSharding) -> jax.Array:
    return jax.lax.with_sharding_constraint(array, where)


def gathered(array: jax.Array) -> Rows:
    """Return a copy of the whole array in this host's memory.

    If several processes hold the array, all must take part; one that needs no copy iterates over `pieces` instead.
    """
    whole = np.empty(array.shape, array.dtype)
    for first_row, rows in pieces(array):
        if array.ndim:
            whole[first_row : first_row + len(rows)] = rows
        else:
            whole[...] = rows
    return whole


def pieces(array: Any) -> Iterator[tuple[int, Rows]]:
    """Yield each row of an array at least once as (first row, rows), in pieces of at most about `PIECE_BYTES`.

    If the array is on devices of several processes, all of them must iterate over every piece. A piece is valid until
    the next one is requested.
    """
    if not isinstance(array, jax.Array) or (array.is_fully_replicated and _on_cpu(array)):
        yield 0, np.asarray(array)
        return
    array = _on_device(array)
    if array.nbytes <= PIECE_BYTES or not isinstance(array.sharding, NamedSharding):
        yield 0, _here(array)
        return
    own_rows, take = rows_at_a_time(array, array.sharding)
    shards = array.shape[0] // own_rows
    for start in range(0, own_rows, take):
        start = min(start, own_rows - take)
        gathered = _here(_cut(array, start, array.sharding, take))
        for shard in range(shards):
            yield shard * own_rows + start, gathered[shard * take : (shard + 1) * take]


@functools.partial(jax.jit, static_argnums=(2, 3))
def _cut(array: jax.Array, start: int, where: NamedSharding, take: int) -> jax.Array:
    """Return rows [start, start + take) of every shard, each on the shard's own device."""

    def rows(shard: jax.Array, start: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice_in_dim(shard, start, take)

    specs = (where.spec, PartitionSpec())
    return jax.shard_map(rows, mesh=where.mesh, in_specs=specs, out_specs=where.spec)(array, start)


def _here(array: jax.Array) -> Rows:
    """Return all of a small array in this host's memory."""
    if array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array.addressable_data(0) if array.is_fully_replicated else array)
    return np.asarray(everywhere(array).addressable_data(0))


def _on_device(array: jax.Array) -> jax.Array:
    """Return the array in its devices' default memory, also if it was offloaded to their hosts' memory."""
    usual = next(iter(array.devices())).default_memory().kind
    return (
        array if array.sharding.memory_kind == usual else jax.device_put(array, array.sharding.with_memory_kind(usual))
    )


def _on_cpu(array: jax.Array) -> bool:
    return bool(next(iter(array.devices())).platform == "cpu")
