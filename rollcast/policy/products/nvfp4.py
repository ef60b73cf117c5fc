"""Round kernels to NVFP4: E2M1 codes of 4 bits, an E4M3 scale for each 16 of them, a float32 scale for the tensor.

A block is 16 numbers along the contraction, the rows of a kernel. The tensor's scale is its largest number / (6 * 448),
a block's is the block's largest number / (6 * the tensor's scale), rounded to E4M3; a number is its code times both
(NVIDIA 2025, "Pretraining large language models with NVFP4", 2509.25149, appendix C). Adapters are trained over such a
base in QeRL (Huang et al. 2025, 2510.11696).

Edge cases: codes round to nearest, ties to the even code, and saturate at 6, since a block's scale may be rounded down.
A block whose scale rounds to 0 is zeros, and so is a matrix without a number above 2^-100. NaN and infinities make
their block NaN and do not count for the tensor's scale.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rollcast.policy.config import PACKED_BLOCK
from rollcast.policy.products.quantise import CODE, LARGEST, nearest_values

PACKED = jnp.uint8
"""The dtype of two codes: that of an even row in the low 4 bits, and that of the row after it in the high 4 bits."""

_LARGEST_CODE = 6.0
_LEAST = 2.0**-100  # so that no scale is subnormal
# Above, or from, each of these the next one of the sizes 0, 0.5, 1, 1.5, 2, 3, 4, 6 is nearer, or as near and even.
_ABOVE, _FROM = (0.25, 1.25, 2.5, 5.0), (0.75, 1.75, 3.5)
_SIGN, _SIZE = 8, 7  # bits of a code


class Packed(NamedTuple):
    """A matrix [rows, columns] in NVFP4, or several with an axis in front."""

    codes: jax.Array  # uint8 [rows / 2, columns]
    scales: jax.Array  # float8_e4m3fn [rows / 16, columns]
    tensor_scale: jax.Array  # float32 [1]


def pack(matrix: jax.Array) -> Packed:
    """Return the codes and scales of a matrix f32 [rows, columns], whose rows 16 divides, or of each of several."""
    if matrix.ndim > 2:
        several: Packed = jax.vmap(pack)(matrix)
        return several
    blocks = matrix.astype(jnp.float32).reshape(-1, PACKED_BLOCK, matrix.shape[1])
    sizes = jnp.where(jnp.isfinite(blocks), jnp.abs(blocks), jnp.nan)
    largest = jnp.max(jnp.where(jnp.isfinite(blocks), sizes, 0.0))
    tensor_scale = jnp.where(largest > _LEAST, largest / (_LARGEST_CODE * LARGEST), 0.0)
    divisor = jnp.where(tensor_scale > 0.0, _LARGEST_CODE * tensor_scale, jnp.inf)
    scales = nearest_values(jnp.max(sizes, axis=1) / divisor)
    steps = scales * tensor_scale
    codes = _codes(blocks / jnp.where(steps > 0.0, steps, jnp.inf)[:, None, :]).reshape(-1, 2, matrix.shape[1])
    return Packed(codes[:, 0] | codes[:, 1] << 4, scales.astype(CODE), tensor_scale[None])


def unpack(packed: Packed) -> jax.Array:
    """Return the numbers f32 [rows, columns], or those of each matrix.

    The product of code and block scale is exact; that with the tensor's scale is rounded, once.
    """
    if packed.codes.ndim > 2:
        several: jax.Array = jax.vmap(unpack)(packed)
        return several
    columns = packed.codes.shape[1]
    codes = jnp.stack([packed.codes & 15, packed.codes >> 4], axis=1).reshape(-1, PACKED_BLOCK, columns)
    scaled = _values(codes) * packed.scales.astype(jnp.float32)[:, None, :]
    return (scaled * packed.tensor_scale[0]).reshape(-1, columns)


def packed_zeros(inputs: int, outputs: int) -> Packed:
    """Return a matrix [inputs, outputs] of zeros."""
    return Packed(
        jnp.zeros((inputs // 2, outputs), PACKED),
        jnp.zeros((inputs // PACKED_BLOCK, outputs), CODE),
        jnp.zeros((1,), jnp.float32),
    )


def _codes(scaled: jax.Array) -> jax.Array:
    """Return the codes u8 of the nearest E2M1 values."""
    size = jnp.abs(scaled)
    passed = [size > border for border in _ABOVE] + [size >= border for border in _FROM]
    steps = functools.reduce(jnp.add, (one.astype(PACKED) for one in passed))
    return steps | jnp.where(scaled < 0.0, PACKED(_SIGN), PACKED(0))


def _values(codes: jax.Array) -> jax.Array:
    """Return the values f32 of E2M1 codes u8: a sign, two bits of exponent and one of mantissa."""
    sizes = (codes & _SIZE).astype(jnp.int32)
    normal = jax.lax.bitcast_convert_type((sizes << 22) + (126 << 23), jnp.float32)  # float32's exponent, 126 more
    values = jnp.where(sizes < 2, sizes.astype(jnp.float32) * 0.5, normal)
    return jnp.where(codes >= _SIGN, -values, values)
