"""Multiply E4M3 codes on the FP8 unit of a GPU and scale the products block by block while they are added up.

Tiles are 128 x 128. The unit gives the sum over 128 elements of the contraction; it is scaled and then added up in
float32, because the unit itself would add up with fewer bits (DeepSeek-V3 Technical Report, section 3.3.2).
"""

from __future__ import annotations

import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import structlog
from jax.sharding import PartitionSpec

from rollcast.policy.products.quantise import ALONG_COLUMNS, ALONG_ROWS, GROUP, Quantised, dequantise, quantise

_log = structlog.get_logger()

TokensAlong = Literal["rows", "contraction"]

_COMPUTE_CAPABILITY_MIN = 8.9  # Ada and Hopper are the first generations with an FP8 unit
_WARPS, _STAGES = 8, 3
_CHECK_SHAPE = (160, 300, 200)  # rows, inner, columns; no multiples of 128, so that padding is checked too
_CHECK_DIFFERENCE_MAX = 1e-3  # relative to the largest value; a Hopper unit adds up with 14 bits


@functools.cache
def is_available() -> bool:
    """Return whether `multiply` can be used, and log the reason if a GPU that should be able to cannot."""
    reason = refusal()
    if reason and jax.local_devices()[0].platform == "gpu":
        _log.warning("fp8_unit_unused", cause=reason)
    return not reason


@functools.cache
def refusal() -> str:
    """Return why products of E4M3 codes are not computed by an FP8 unit; empty if they are."""
    device = jax.local_devices()[0]
    if device.platform != "gpu":
        return f"a {device.platform} has no FP8 unit that is used"
    capability = float(device.compute_capability)
    if capability < _COMPUTE_CAPABILITY_MIN:
        return f"FP8 units need compute capability {_COMPUTE_CAPABILITY_MIN}, and this GPU has {capability}"
    try:
        difference = _difference()
    except Exception as error:  # compilers raise many kinds of errors; after any of them another unit does the work
        return f"the FP8 kernel failed its check: {type(error).__name__}: {error}"[:500]
    right = difference <= _CHECK_DIFFERENCE_MAX  # not so for NaN
    return "" if right else f"the FP8 kernel's products are {difference:.2g} off"


def mesh_refusal(sizes: tuple[int, ...] | None) -> str:
    """Return why programs on a mesh with axes of these sizes do not use the units; empty if they do.

    sizes: None for programs that are traced without a mesh. With several devices their operands may be sharded, and a
    kernel that XLA does not know would gather them. The last axis divides kernels too, which XLA's own products can do.
    """
    if sizes is None:
        count = jax.device_count()
        return "" if count == 1 else f"FP8 units are used with one device or on a mesh, and there are {count} devices"
    return "" if sizes[-1] == 1 else f"FP8 units are used where mesh.tensor is 1, and it is {sizes[-1]}"


def takes(tokens: int) -> bool:
    """Return whether `multiply_tokens` can multiply this many tokens: each device of the mesh needs whole groups."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh_refusal(None if mesh.empty else mesh.axis_sizes):
        return False
    return bool(mesh.size <= 1 or tokens % (mesh.size * GROUP) == 0)


def multiply_tokens(left: Quantised, right: Quantised, *, tokens: TokensAlong) -> jax.Array:
    """Return `multiply` of operands whose tokens are divided among the devices of the mesh in use, if there is one.

    tokens: "rows" if the rows of ``left`` are tokens; each device then gathers ``right``, in codes of 8 bits.
    "contraction" if the columns of ``left`` and the rows of ``right`` are; the devices' products are then added up in
    float32, and each device keeps its part of the rows, as a kernel's gradient lies, if they divide evenly.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.size <= 1:
        return multiply(left, right)
    *copies, parts, _ = mesh.axis_names  # kernels are divided among one axis of the rows, and the same along others
    rows = (*copies, parts)
    by_rows, by_columns, whole = PartitionSpec(rows), PartitionSpec(None, rows), PartitionSpec()
    on_mesh = functools.partial(jax.shard_map, check_vma=False)
    if tokens == "rows":
        product: jax.Array = on_mesh(multiply, in_specs=(by_rows, whole), out_specs=by_rows)(left, right)
        return product
    divided = left.codes.shape[0] % mesh.shape[parts] == 0

    def summed(left: Quantised, right: Quantised) -> jax.Array:
        product = multiply(left, right)
        if not divided:
            return jax.lax.psum(product, rows)
        return jax.lax.psum(jax.lax.psum_scatter(product, parts, tiled=True), copies)

    ends = PartitionSpec(parts) if divided else whole
    total: jax.Array = on_mesh(summed, in_specs=(by_columns, by_rows), out_specs=ends)(left, right)
    return total


def multiply(left: Quantised, right: Quantised, *, interpret: bool = False) -> jax.Array:
    """Return left [rows, inner] @ right [inner, columns] as f32.

    ``left`` has groups along its columns; ``right`` has groups along its rows, or square blocks. ``interpret`` runs the
    kernel on any device, slowly.
    """
    # Only machines with such a unit need Pallas, which takes half a second and 16 MiB to import.
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    (rows, inner), columns = left.codes.shape, right.codes.shape[1]
    tiles = [-(-size // GROUP) for size in (rows, inner, columns)]
    own = jnp.repeat(right.exponents, GROUP, axis=1)[:, :columns] if _is_blocks(right) else right.exponents
    operands = (
        _padded(left.codes, tiles[0], tiles[1]),
        jnp.pad(_power(left.exponents.T), ((0, 0), (0, tiles[0] * GROUP - rows))),
        _padded(right.codes, tiles[1], tiles[2]),
        jnp.pad(_power(own), ((0, 0), (0, tiles[2] * GROUP - columns))),
    )
    product: jax.Array = pl.pallas_call(
        functools.partial(_tile, steps=tiles[1]),
        grid=(tiles[0], tiles[2]),
        in_specs=[
            pl.BlockSpec((GROUP, tiles[1] * GROUP), lambda row, column: (row, 0)),
            pl.BlockSpec((tiles[1], GROUP), lambda row, column: (0, row)),
            pl.BlockSpec((tiles[1] * GROUP, GROUP), lambda row, column: (0, column)),
            pl.BlockSpec((tiles[1], GROUP), lambda row, column: (0, column)),
        ],
        out_specs=pl.BlockSpec((GROUP, GROUP), lambda row, column: (row, column)),
        out_shape=jax.ShapeDtypeStruct((tiles[0] * GROUP, tiles[2] * GROUP), jnp.float32),
        compiler_params=triton.CompilerParams(num_warps=_WARPS, num_stages=_STAGES),
        interpret=interpret,
        name="e4m3_multiply",
    )(*operands)
    return product[:rows, :columns]


def _tile(left: Any, left_scales: Any, right: Any, right_scales: Any, out: Any, *, steps: int) -> None:
    """Compute one 128 x 128 tile of the product into ``out``; the scales are f32 [steps, 128]."""
    from jax.experimental import pallas as pl

    def step(index: jax.Array, total: jax.Array) -> jax.Array:
        inner = pl.ds(index * GROUP, GROUP)
        codes = left[:, inner], right[inner, :]
        part = jnp.dot(*codes, precision=jax.lax.Precision.DEFAULT, preferred_element_type=jnp.float32)
        return total + part * left_scales[index, :][:, None] * right_scales[index, :][None, :]

    out[...] = jax.lax.fori_loop(0, steps, step, jnp.zeros((GROUP, GROUP), jnp.float32))


def _is_blocks(right: Quantised) -> bool:
    return bool(right.exponents.shape[1] != right.codes.shape[1])


def _padded(codes: jax.Array, tiles_down: int, tiles_across: int) -> jax.Array:
    missing = (tiles_down * GROUP - codes.shape[0], tiles_across * GROUP - codes.shape[1])
    return jnp.pad(codes, ((0, missing[0]), (0, missing[1])))


def _power(exponents: jax.Array) -> jax.Array:
    return jax.lax.bitcast_convert_type((exponents.astype(jnp.int32) + 127) << 23, jnp.float32)


def _difference() -> float:
    """Return the largest difference between the unit's product and a float64 product, relative to the largest value."""
    rows, inner, columns = _CHECK_SHAPE
    random = np.random.default_rng(0)
    with jax.ensure_compile_time_eval():  # the caller may be tracing, and values are needed here
        left = quantise(jnp.asarray(random.standard_normal((rows, inner)), jnp.float32), ALONG_COLUMNS)
        right = quantise(jnp.asarray(random.standard_normal((inner, columns)), jnp.float32), ALONG_ROWS)
        exact = np.asarray(dequantise(left, ALONG_COLUMNS), np.float64) @ np.asarray(dequantise(right, ALONG_ROWS))
        found = np.asarray(jax.jit(multiply)(left, right))
    return float(np.max(np.abs(found - exact)) / np.max(np.abs(exact)))
