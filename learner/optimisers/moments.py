"""Store an optimiser's moments in fewer bits: bfloat16, or 8 bits with a scale for each block.

A moving average changes by little at a time, often by less than the step between two numbers of such a format: rounded
to the nearest number it would never change. Stochastic rounding, up or down with odds that make the mean right, lets it
follow (Gupta et al. 2015, section 3). The chance is a hash of step, tensor and element, so that repeating a training
gives the same bits on any number of devices.

With 8 bits, codes are in blocks of up to 256 elements along the last axis, each block relative to its largest element
(Dettmers et al. 2022, "8-bit optimizers via block-wise quantization", section 2). Codes are closer together near 0: a
code is the square root of the first moment's size, and the fourth root of the second moment.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax

from rollcast.policy.config import StateDtype

BLOCK = 256
"""The most elements that share a scale; the largest divisor of the last axis up to this is used."""
_FIRST_CODES = 127
_SECOND_CODES = 255


class Coded(NamedTuple):
    """A moment in 8 bits: codes in the tensor's shape (int8; uint8 if none is negative) and one scale per block."""

    codes: jax.Array
    scales: jax.Array  # f32 [..., last axis / block]


class Stored(NamedTuple):
    """The moments of one tensor between steps, each in a `StateDtype`; None where the optimiser has no such moment."""

    first: Any
    second: Any


class Transformation(Protocol):
    """An optax transformation of a single tensor whose state is `Stored`."""

    def init(self, param: jax.Array) -> Stored:
        """Return the moments before the first step."""

    def update(
        self, gradient: jax.Array, moments: Stored, param: jax.Array, *, count: jax.Array, seeds: jax.Array
    ) -> tuple[jax.Array, Stored]:
        """Return the change of the parameter (f32) and the moments after the step.

        Args:
            count: steps taken before this one, i32 scalar.
            seeds: the tensor's own seeds for the stochastic rounding of its moments, u32 [2].
        """


def stored(inner: optax.GradientTransformation, form: StateDtype) -> Transformation:
    """Return a transformation that keeps only the moments of ``inner``, in fewer bits.

    Transformations of optax call their moments mu and nu and the steps taken count; all else in the states of those
    that are used here is constant. A state is therefore made anew in each step from the stored moments and from one
    count for all tensors.
    """

    def init(param: jax.Array) -> Stored:
        fresh = jax.eval_shape(lambda: _stored(inner.init(param), jnp.zeros(2, jnp.uint32), form))
        # Not encoded zeros: compilers would compute these at length. Codes of 0 with a scale of 0 are 0 as well.
        zeros: Stored = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), fresh)
        return zeros

    def update(
        gradient: jax.Array, moments: Stored, param: jax.Array, *, count: jax.Array, seeds: jax.Array
    ) -> tuple[jax.Array, Stored]:
        known = {"count": count, "mu": _decode(moments.first), "nu": _decode(moments.second, second=True)}
        state = jax.tree_util.tree_map_with_path(lambda path, leaf: known.get(_field(path), leaf), inner.init(param))
        change, state = inner.update(gradient, state, param)
        return change, _stored(state, seeds ^ (count + 1).astype(jnp.uint32) * jnp.uint32(0x9E3779B1), form)

    transformation: Transformation = optax.GradientTransformationExtraArgs(init, update)
    return transformation


def _stored(state: Any, seeds: jax.Array, form: StateDtype) -> Stored:
    found = {_field(path): leaf for path, leaf in jax.tree.leaves_with_path(state)}
    first, second = found.get("mu"), found.get("nu")
    return Stored(
        None if first is None else _encode(first, seeds[0], form),
        None if second is None else _encode(second, seeds[1], form, second=True),
    )


def _field(path: tuple[Any, ...]) -> str:
    """Return the field of an optax state that a leaf is the value of; "" if it is in none."""
    return path[-1].name if isinstance(path[-1], jax.tree_util.GetAttrKey) else ""


def _encode(values: jax.Array, seed: jax.Array, form: StateDtype, *, second: bool = False) -> Any:
    """Encode a moment as it is stored. Vectors take little memory and stay float32."""
    if values.ndim < 2 or form == "float32":
        return values
    chances = chance(values.shape, seed)
    if form == "bfloat16":
        return to_bfloat16(values, chances)
    return encode_second(values, chances) if second else encode_first(values, chances)


def _decode(moment: Any, *, second: bool = False) -> Any:
    if isinstance(moment, Coded):
        return decode_second(moment) if second else decode_first(moment)
    return None if moment is None else moment.astype(jnp.float32)


def chance(shape: tuple[int, ...], seed: jax.Array) -> jax.Array:
    """Return f32 in [0, 1) for each element: MurmurHash3's finaliser of its index and the seed (uint32 scalar)."""
    bits = jnp.broadcast_to(seed.astype(jnp.uint32), shape)
    for axis in range(len(shape)):
        bits = _mixed(bits ^ (jax.lax.broadcasted_iota(jnp.uint32, shape, axis) + jnp.uint32(0x9E3779B9)))
    return (bits >> 8).astype(jnp.float32) * jnp.float32(2.0**-24)


def to_bfloat16(values: jax.Array, chances: jax.Array) -> jax.Array:
    """Round f32 stochastically to one of the two nearest bfloat16 numbers; the mean is the value."""
    bits = jax.lax.bitcast_convert_type(values, jnp.uint32)
    low = (chances * jnp.float32(65536.0)).astype(jnp.uint32)
    return jax.lax.bitcast_convert_type(((bits + low) >> 16).astype(jnp.uint16), jnp.bfloat16)


def encode_first(values: jax.Array, chances: jax.Array) -> Coded:
    """Encode signed values f32, the first moment, to int8 codes with scales."""
    blocks, scales = _blocks(values)
    size = jnp.abs(blocks) / _divisor(scales)
    code = _round(size, jnp.sqrt(size), _FIRST_CODES, 2, chances.reshape(blocks.shape))
    return Coded((jnp.sign(blocks) * code).astype(jnp.int8).reshape(values.shape), scales)


def decode_first(coded: Coded) -> jax.Array:
    """Return the first moment f32 in the tensor's shape."""
    codes = _like_blocks(coded).astype(jnp.float32)
    return (codes * jnp.abs(codes) * (coded.scales[..., None] * _FIRST_CODES**-2)).reshape(coded.codes.shape)


def encode_second(values: jax.Array, chances: jax.Array) -> Coded:
    """Encode values f32 >= 0, the second moment, to uint8 codes with scales.

    The lowest code is 1 and not 0, because Adam divides by these values.
    """
    blocks, scales = _blocks(values)
    size = blocks / _divisor(scales)
    code = _round(size, jnp.sqrt(jnp.sqrt(size)), _SECOND_CODES, 4, chances.reshape(blocks.shape))
    return Coded(jnp.maximum(code, 1.0).astype(jnp.uint8).reshape(values.shape), scales)


def decode_second(coded: Coded) -> jax.Array:
    """Return the second moment f32 in the tensor's shape."""
    squares = jnp.square(_like_blocks(coded).astype(jnp.float32) * (1.0 / _SECOND_CODES))
    return (jnp.square(squares) * coded.scales[..., None]).reshape(coded.codes.shape)


def block_size(last_axis: int) -> int:
    """Return how many elements share a scale along an axis of this length."""
    return next(size for size in range(min(BLOCK, last_axis), 0, -1) if last_axis % size == 0)


def _round(size: jax.Array, root: jax.Array, codes: int, power: int, chances: jax.Array) -> jax.Array:
    """Return the code below or above, with odds by which the decoded value is ``size`` on average."""
    below = jnp.clip(jnp.floor(root * codes), 0.0, codes - 1.0)
    low, high = (below / codes) ** power, ((below + 1.0) / codes) ** power
    return below + (chances < (size - low) / (high - low)).astype(jnp.float32)


def _blocks(values: jax.Array) -> tuple[jax.Array, jax.Array]:
    size = block_size(values.shape[-1])
    blocks = values.reshape(*values.shape[:-1], values.shape[-1] // size, size)
    return blocks, jnp.max(jnp.abs(blocks), axis=-1)


def _like_blocks(coded: Coded) -> jax.Array:
    return coded.codes.reshape(*coded.scales.shape, coded.codes.shape[-1] // coded.scales.shape[-1])


def _divisor(scales: jax.Array) -> jax.Array:
    return jnp.where(scales > 0.0, scales, 1.0)[..., None]


def _mixed(bits: jax.Array) -> jax.Array:
    """Mix uint32 bits by MurmurHash3's 32-bit finaliser (fmix32)."""
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x85EBCA6B)
    bits = (bits ^ (bits >> 13)) * jnp.uint32(0xC2B2AE35)
    return bits ^ (bits >> 16)
