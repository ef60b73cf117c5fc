"""Fingerprint arrays on their devices, so that damage to a checkpoint is detected on any mesh.

A fingerprint is a sum of 64 bits, modulo 2^32 in both halves, over an array's elements, of a hash of each element's
bits and index. The sum of integers does not depend on the order, so devices add up their own shards: no bytes leave
them, and the same state has the same fingerprint on another mesh. The hash is the finaliser of MurmurHash3 (Appleby
2011), taken twice. Fingerprints find torn and damaged files; they do not protect against an attacker.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from blake3 import blake3

_STEP = 0x9E3779B1  # 2^32 / golden ratio: neighbours' indices differ in many bits
_SECOND = 0x27D4EB2F  # separates the second half from the first


@dataclass(frozen=True, slots=True)
class ArrayRecord:
    """What an array of a checkpoint is."""

    dtype: str  # NumPy's name
    shape: tuple[int, ...]
    fingerprint: str  # hex


def begin_fingerprints(state: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Start to compute the fingerprint of each array, u32 [2]; the arrays may be donated afterwards."""
    return {name: _fingerprint(_on_device(array)) for name, array in state.items()}


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


def _hex(fingerprint: Any) -> str:
    return "".join(f"{int(half):08x}" for half in np.asarray(fingerprint))


def _sums(array: jax.Array) -> jax.Array:
    bits = jax.lax.bitcast_convert_type(array, f"u{array.dtype.itemsize}").astype(jnp.uint32)
    index = jnp.zeros(array.shape, jnp.uint32)
    for axis in range(array.ndim):
        stride = math.prod(array.shape[axis + 1 :]) % (1 << 32)
        index += jax.lax.broadcasted_iota(jnp.uint32, array.shape, axis) * jnp.uint32(stride)
    first = _mixed(bits ^ (index * jnp.uint32(_STEP)))
    second = _mixed(first + (index ^ jnp.uint32(_SECOND)))
    return jnp.stack([_sum(first), _sum(second)])


def _sum(values: jax.Array) -> jax.Array:
    # The first axis apart: a CPU adds up rows with vector instructions, and all elements at once without.
    rows = jnp.sum(jnp.atleast_1d(values), axis=0, dtype=jnp.uint32)
    return jnp.sum(rows, dtype=jnp.uint32)


_fingerprint = jax.jit(_sums)


def _mixed(value: jax.Array) -> jax.Array:
    value = (value ^ (value >> 16)) * jnp.uint32(0x85EBCA6B)
    value = (value ^ (value >> 13)) * jnp.uint32(0xC2B2AE35)
    return value ^ (value >> 16)


def _on_device(array: jax.Array) -> jax.Array:
    """Return the array in its devices' default memory, also if it was offloaded to their hosts' memory."""
    usual = next(iter(array.devices())).default_memory().kind
    if array.sharding.memory_kind == usual:
        return array
    return jax.device_put(array, array.sharding.with_memory_kind(usual))
