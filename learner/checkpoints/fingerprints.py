"""Fingerprint arrays on their devices, so that damage to a checkpoint is detected on any mesh.

A fingerprint is a sum of 64 bits, modulo 2^32 in both halves, over an array's elements, of a hash of each element's
bits and index. The sum of integers does not depend on the order, so devices add up their own shards, and the same state
has the same fingerprint on another mesh. Only the sums leave the devices, and the host adds them up: on the few threads
of a CPU, several programs under way whose devices wait for each other can stop for ever. The hash is the finaliser of
MurmurHash3 (Appleby 2011), taken twice. Fingerprints find torn and damaged files; they do not protect against an
attacker.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from blake3 import blake3
from jax.sharding import NamedSharding, PartitionSpec

_STEP = 0x9E3779B1  # 2^32 / golden ratio: neighbours' indices differ in many bits
_SECOND = 0x27D4EB2F  # separates the second half from the first
_SLICES = 16  # most slices of a shard that are added up
_SLICED_ELEMENTS = 1 << 16  # of the smallest shard that is cut


@dataclass(frozen=True, slots=True)
class ArrayRecord:
    """What an array of a checkpoint is."""

    dtype: str  # NumPy's name
    shape: tuple[int, ...]
    fingerprint: str  # hex


def begin_fingerprints(state: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Start to compute the fingerprint of each array; the arrays may be donated afterwards.

    The result is the devices' sums, u32 [devices, 2], or one of them that holds the total if the devices are those of
    several processes, which must all call this.
    """
    found = {name: _begin(_on_device(array)) for name, array in state.items()}
    shared = {name: each for name, each in found.items() if not each.is_fully_addressable}
    # In one program: with one for each array, more of them are under way than the 32 that a CPU device takes at a time.
    # The devices of a process then run them in different orders, and the processes wait for each other forever.
    return found | _totals(shared) if shared else found


def held_fingerprints(state: Mapping[str, jax.Array]) -> Callable[[], dict[str, Any]]:
    """Hold the values of arrays on this process's CPU devices, and return what computes their fingerprints, once.

    NumPy's view of such an array is the device's own memory, so nothing is copied here, and a program to which the
    array is donated gets other memory for its results. Another thread may compute the fingerprints, beside any program:
    theirs wait for no other device. Each array's memory is released when its fingerprint is known.
    """
    held = {name: HeldArray(array) for name, array in state.items()}
    return lambda: {name: np.asarray(_begin(held.pop(name).again())) for name in list(held)}


class HeldArray:
    """The values of an array on CPU devices, which stay what they are when the array is donated."""

    def __init__(self, array: jax.Array) -> None:
        self._shape = array.shape
        self._sharding = array.sharding.with_memory_kind(_usual_memory(array))
        self._shards = [(np.asarray(shard.data), shard.device) for shard in array.addressable_shards]

    def again(self) -> jax.Array:
        """Return an array of the same values, in the same memory where the device can read it there."""
        shards = [jax.device_put(values, device) for values, device in self._shards]
        return jax.make_array_from_single_device_arrays(self._shape, self._sharding, shards)


def records_of(like: Mapping[str, Any], fingerprints: Mapping[str, Any]) -> dict[str, ArrayRecord]:
    """Return the record of each array by name, given what has their shapes and dtypes; wait for the fingerprints."""
    return {
        name: ArrayRecord(np.dtype(leaf.dtype).name, tuple(leaf.shape), _hex(fingerprints[name]))
        for name, leaf in like.items()
    }


def digest_of(records: Mapping[str, ArrayRecord]) -> str:
    """Return a hash of records in hex; only equal states have equal ones."""
    values = [[name, *astuple(record)] for name, record in sorted(records.items())]
    return blake3(json.dumps(values).encode()).hexdigest()


def _hex(sums: Any) -> str:
    return "".join(f"{half:08x}" for half in np.asarray(sums).sum(axis=0, dtype=np.uint32))


def _begin(array: jax.Array) -> jax.Array:
    where = array.sharding
    return sums(array, where if isinstance(where, NamedSharding) else None)


@functools.partial(jax.jit, static_argnums=1)
def sums(array: jax.Array, where: NamedSharding | None) -> jax.Array:
    """Return the sums over each device's shard, u32 [devices, 2]; zeros for a shard that another device counts."""
    if where is None:
        return _sums_of_shard(array, array.shape, [0] * array.ndim)[None]
    mesh, divided = where.mesh, tuple(where.spec) + (None,) * (array.ndim - len(where.spec))
    rest = tuple(name for name in mesh.axis_names if name not in jax.tree.leaves(divided))

    def of_device(shard: jax.Array) -> jax.Array:
        start = [
            0 if axes is None else jax.lax.axis_index(axes) * size
            for axes, size in zip(divided, shard.shape, strict=True)
        ]
        found = _sums_of_shard(shard, array.shape, start)
        return jnp.where(jax.lax.axis_index(rest) == 0, found, 0)[None] if rest else found[None]

    return jax.shard_map(of_device, mesh=mesh, in_specs=where.spec, out_specs=PartitionSpec(mesh.axis_names))(array)


def _sums_of_shard(shard: jax.Array, shape: Sequence[int], start: Sequence[Any]) -> jax.Array:
    """Return the sums u32 [2] of the part of an array of ``shape`` that begins at ``start``.

    Its slices are added up element by element before their sum is taken: on a CPU such additions take vector
    instructions and read memory in order, and a sum of all elements takes four times as long.
    """
    if shard.ndim == 0:
        shard, shape, start = shard[None], (1,), (0,)
    axis, slices = _slices_of(shard.shape)
    sizes = list(shard.shape)
    sizes[axis] //= slices
    rows = shard.reshape(*sizes[:axis], slices, *sizes[axis:])
    strides = [math.prod(shape[number + 1 :]) % (1 << 32) for number in range(shard.ndim)]
    index = jnp.zeros(sizes, jnp.uint32)
    for number, (begin, stride) in enumerate(zip(start, strides, strict=True)):
        place = jax.lax.broadcasted_iota(jnp.uint32, sizes, number) + jnp.uint32(begin)
        index += place * jnp.uint32(stride)
    first = second = jnp.zeros(sizes, jnp.uint32)
    for number in range(slices):
        place = index + jnp.uint32(number * sizes[axis] * strides[axis] % (1 << 32))
        bits = _integers(jax.lax.index_in_dim(rows, number, axis, keepdims=False))
        one = _mixed(bits ^ (place * jnp.uint32(_STEP)))
        first, second = first + one, second + _mixed(one + (place ^ jnp.uint32(_SECOND)))
    return jnp.stack([_sum(first), _sum(second)])


def _slices_of(shape: Sequence[int]) -> tuple[int, int]:
    """Return the axis to cut, and into how many slices; small arrays are left whole, for programs that compile fast."""
    if math.prod(shape) < _SLICED_ELEMENTS:
        return 0, 1
    counts = [math.gcd(size, _SLICES) for size in shape]
    return counts.index(max(counts)), max(counts)


def _integers(values: jax.Array) -> jax.Array:
    return jax.lax.bitcast_convert_type(values, f"u{values.dtype.itemsize}").astype(jnp.uint32)


def _sum(values: jax.Array) -> jax.Array:
    # The first axis apart: a CPU adds up rows with vector instructions, and all elements at once without.
    rows = jnp.sum(values, axis=0, dtype=jnp.uint32)
    return jnp.sum(rows, dtype=jnp.uint32)


_totals = jax.jit(lambda found: {name: jnp.sum(each, 0, jnp.uint32, keepdims=True) for name, each in found.items()})


def _mixed(value: jax.Array) -> jax.Array:
    value = (value ^ (value >> 16)) * jnp.uint32(0x85EBCA6B)
    value = (value ^ (value >> 13)) * jnp.uint32(0xC2B2AE35)
    return value ^ (value >> 16)


def _on_device(array: jax.Array) -> jax.Array:
    """Return the array in its devices' default memory, also if it was offloaded to their hosts' memory."""
    usual = _usual_memory(array)
    if array.sharding.memory_kind == usual:
        return array
    return jax.device_put(array, array.sharding.with_memory_kind(usual))


def _usual_memory(array: jax.Array) -> str:
    return str(next(iter(array.devices())).default_memory().kind)
