"""Round to E4M3 with power-of-two scales: the one rounding that training, snapshot and rollout share.

A matrix is cut into blocks; the numbers of a block share one scale 2^exponent, the least power of two with which the
largest of them fits into E4M3. Kernels have blocks of 128 x 128, activations and gradients groups of 128 along the
contraction (DeepSeek-V3 Technical Report, section 3.3.2). Powers of two make scaling exact: the scaled value of a code
is a float32, and a bfloat16 too, so that a product of scaled values is what an FP8 unit computes and scales afterwards.

Edge cases: a ragged last block is a smaller block. A block of zeros has the least exponent. Numbers below float32's
normal range become zero, whether or not the device flushes them by itself; the few beyond 448 * 2^119 become 448 *
2^119. NaN and infinities become NaN and do not count for their block's scale.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

CODE = jnp.float8_e4m3fn
LARGEST = 448.0  # the largest code
GROUP = 128

Block = tuple[int, int]  # rows and columns that share a scale
WEIGHT_BLOCK: Block = (GROUP, GROUP)
ALONG_COLUMNS: Block = (1, GROUP)  # for a contraction over columns
ALONG_ROWS: Block = (GROUP, 1)  # for a contraction over rows

# With the least exponent every number below float32's normal range rounds to zero; with the largest, 448 is finite in
# float32 and in bfloat16.
EXPONENT_MIN, EXPONENT_MAX = -116, 119

_FLOAT32_BIAS, _FLOAT32_MANTISSA_BITS = 127, 23
_LARGEST_EXPONENT, _LARGEST_MANTISSA = 8, 0x600000  # exponent and mantissa of 448 = 1.75 * 2^8 as a float32
_LEAST_NORMAL, _STEPS_PER_UNIT = 2.0**-6, 2.0**9  # smallest normal number of E4M3; below it codes are 2^-9 apart


class Quantised(NamedTuple):
    """A matrix in E4M3, or several with an axis in front."""

    codes: jax.Array  # float8_e4m3fn [rows, columns]
    exponents: jax.Array  # int8 [blocks of rows, blocks of columns]; a value is its code * 2^exponent


def quantise(matrix: jax.Array, block: Block) -> Quantised:
    """Return the codes and exponents of a matrix f32 or bf16 [rows, columns], or of each of several."""
    if matrix.ndim > 2:
        several: Quantised = jax.vmap(functools.partial(quantise, block=block))(matrix)
        return several
    wide = matrix.astype(jnp.float32)
    exponents = _exponents(wide, block)
    codes = _on_grid(wide, _spread(exponents, block, wide.shape)).astype(CODE)
    return Quantised(codes, exponents.astype(jnp.int8))


def dequantise(quantised: Quantised, block: Block) -> jax.Array:
    """Return the values f32 [rows, columns] that codes and exponents stand for, exactly, or those of each matrix."""
    if quantised.codes.ndim > 2:
        several: jax.Array = jax.vmap(functools.partial(dequantise, block=block))(quantised)
        return several
    exponents = quantised.exponents.astype(jnp.int32)
    return quantised.codes.astype(jnp.float32) * _power(_spread(exponents, block, quantised.codes.shape))


def rounded(matrix: jax.Array, block: Block) -> jax.Array:
    """Round a matrix to f32 [rows, columns], to the bit as quantise and dequantise do, without the step to 8 bits.

    Of several matrices each is rounded by itself.
    """
    if matrix.ndim > 2:
        several: jax.Array = jax.vmap(functools.partial(rounded, block=block))(matrix)
        return several
    wide = matrix.astype(jnp.float32)
    exponents = _spread(_exponents(wide, block), block, wide.shape)
    return _on_grid(wide, exponents) * _power(exponents)


def blocks_of(shape: tuple[int, int], block: Block) -> tuple[int, int]:
    """Return how many blocks a matrix of this shape has, by rows and by columns."""
    return -(-shape[0] // block[0]), -(-shape[1] // block[1])


def _exponents(matrix: jax.Array, block: Block) -> jax.Array:
    """Return i32 [blocks of rows, blocks of columns]: the least e with max |finite x| <= 448 * 2^e, within limits."""
    rows, columns = blocks_of(matrix.shape, block)
    sizes = jnp.where(jnp.isfinite(matrix), jnp.abs(matrix), 0.0)
    padded = jnp.pad(sizes, ((0, rows * block[0] - matrix.shape[0]), (0, columns * block[1] - matrix.shape[1])))
    largest = jnp.max(padded.reshape(rows, block[0], columns, block[1]), axis=(1, 3))
    bits = jax.lax.bitcast_convert_type(largest, jnp.int32)  # no logarithm, which would be off at powers of two
    mantissas = bits & ((1 << _FLOAT32_MANTISSA_BITS) - 1)
    exponents = (bits >> _FLOAT32_MANTISSA_BITS) - _FLOAT32_BIAS - _LARGEST_EXPONENT
    return jnp.clip(exponents + (mantissas > _LARGEST_MANTISSA).astype(jnp.int32), EXPONENT_MIN, EXPONENT_MAX)


def _spread(exponents: jax.Array, block: Block, shape: tuple[int, ...]) -> jax.Array:
    """Repeat exponents to one per number: i32 [rows, columns], with 1 for an axis that a single block spans."""
    for axis in (0, 1):
        if exponents.shape[axis] > 1 and block[axis] > 1:
            exponents = jnp.repeat(exponents, block[axis], axis=axis)[
                tuple(slice(shape[axis]) if axis == one else slice(None) for one in (0, 1))
            ]
    return exponents


def _on_grid(matrix: jax.Array, exponents: jax.Array) -> jax.Array:
    """Round x / 2^exponent to a code's value, as f32; NaN where x is not finite."""
    return jnp.where(jnp.isfinite(matrix), nearest_values(matrix * _power(-exponents)), jnp.nan)


def nearest_values(numbers: jax.Array) -> jax.Array:
    """Round numbers f32 to the nearest values of codes, as f32: ties to even, sizes above 448 to 448, NaN stays."""
    scaled = jnp.clip(numbers, -LARGEST, LARGEST)
    coarse = jax.lax.reduce_precision(scaled, exponent_bits=8, mantissa_bits=3)
    fine = jnp.round(scaled * _STEPS_PER_UNIT) / _STEPS_PER_UNIT
    return jnp.where(jnp.abs(scaled) < _LEAST_NORMAL, fine, coarse)


def _power(exponents: jax.Array) -> jax.Array:
    """Return 2^exponent as f32, exactly."""
    return jax.lax.bitcast_convert_type((exponents + _FLOAT32_BIAS) << _FLOAT32_MANTISSA_BITS, jnp.float32)
