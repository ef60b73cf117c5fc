"""Multiply rows that are sorted by group with the matrix of each group, on NVIDIA GPUs, in Triton.

XLA has no grouped product for these GPUs: it multiplies every row with the matrix of every group, behind masks, and the
masked rows alone take 32 GiB for one layer of Qwen3-30B-A3B with 8,192 tokens. TPUs have one (`jax.lax.ragged_dot`).

A program computes one tile. The tiles of a product of rows are cut anew at the first row of each group, so that a tile
needs one group's matrix; at most one tile a group is not full. Sums are float32.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import structlog
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

_ROWS_MIN, _ROWS_MAX = 16, 128  # rows of a tile; tensor cores take at least 16
_COLUMNS = 128
_INNER = 64  # elements of a contraction along columns that are read at a time
_WARPS, _STAGES = 8, 3

_CHECK_SIZES, _CHECK_INNER_COLUMNS = (0, 40, 1, 9), (70, 130)  # no multiples of tiles
_CHECK_DIFFERENCE_MAX = 1e-3  # relative to the largest value; sums are float32

_log = structlog.get_logger()


def multiply(
    x: jax.Array,
    matrices: jax.Array,
    sizes: jax.Array,
    dtype: Any,
    *,
    transposed: bool = False,
    interpret: bool = False,
) -> jax.Array:
    """Return each row of x [rows, inner] @ its group's matrix, [rows, columns] in ``dtype``.

    Args:
        matrices: [groups, inner, columns], or [groups, columns, inner] if ``transposed``; in x's dtype.
        sizes: i32 [groups], rows of each group. They add up to all rows at most; what is made of further ones is
            undefined.
        interpret: run the kernel on any device, slowly.
    """
    count, groups = x.shape[0], matrices.shape[0]
    columns = matrices.shape[1 if transposed else 2]
    if count < _ROWS_MIN:
        padded = jnp.pad(x, ((0, _ROWS_MIN - count), (0, 0)))
        sizes = sizes.at[-1].add(_ROWS_MIN - count)
        return multiply(padded, matrices, sizes, dtype, transposed=transposed, interpret=interpret)[:count]
    rows = _tile_rows(count, groups)
    table = _tiles(sizes, rows, count // rows + groups)
    product: jax.Array = pl.pallas_call(
        functools.partial(_row_tile, rows=rows, transposed=transposed),
        out_shape=jax.ShapeDtypeStruct((count, columns), dtype),
        grid=(table.shape[1], pl.cdiv(columns, _COLUMNS)),
        compiler_params=triton.CompilerParams(num_warps=_WARPS, num_stages=_STAGES),
        interpret=interpret,
        name="grouped_product",
    )(table, x, matrices)
    return product


def multiply_rows(left: jax.Array, right: jax.Array, sizes: jax.Array, *, interpret: bool = False) -> jax.Array:
    """Return for each group the transpose of its rows of left [rows, inner] @ those of right [rows, columns].

    The result is f32 [groups, inner, columns], and 0 for a group without rows; see ``multiply`` for the arguments.
    """
    count, inner, columns, groups = len(left), left.shape[1], right.shape[1], len(sizes)
    if count < _ROWS_MIN:
        left, right = (jnp.pad(one, ((0, _ROWS_MIN - count), (0, 0))) for one in (left, right))
    ends = jnp.cumsum(sizes, dtype=jnp.int32)
    product: jax.Array = pl.pallas_call(
        functools.partial(_group_tile, rows=min(_INNER, _tile_rows(len(left), groups))),
        out_shape=jax.ShapeDtypeStruct((groups, inner, columns), jnp.float32),
        grid=(groups, pl.cdiv(inner, _COLUMNS), pl.cdiv(columns, _COLUMNS)),
        compiler_params=triton.CompilerParams(num_warps=_WARPS, num_stages=_STAGES),
        interpret=interpret,
        name="grouped_product_of_rows",
    )(jnp.stack([ends - sizes, ends]), left, right)
    return product


@functools.cache
def is_available() -> bool:
    """Return whether the kernels can be used where a program is lowered for NVIDIA GPUs.

    A GPU of this process checks them first, and the reason is logged if they are wrong there. Without a GPU programs
    are lowered for other machines' ones.
    """
    if jax.local_devices()[0].platform != "gpu":
        return True
    try:
        with jax.ensure_compile_time_eval():  # the caller may be tracing, and values are needed here
            difference = _difference()
    except Exception as error:  # compilers raise many kinds of errors; after any of them XLA's products do the work
        _log.warning("grouped_products_by_xla", cause=f"the kernel failed its check: {type(error).__name__}: {error}")
        return False
    if not difference <= _CHECK_DIFFERENCE_MAX:  # not so for NaN
        _log.warning("grouped_products_by_xla", cause=f"the kernel is {difference:.2g} off in its check")
        return False
    return True


def _difference(*, interpret: bool = False) -> float:
    """Return the largest difference from float64 products, relative to the largest value."""
    random, ends = np.random.default_rng(0), np.cumsum(_CHECK_SIZES)
    x, dy = (random.normal(size=(ends[-1], size)).astype(jnp.bfloat16) for size in _CHECK_INNER_COLUMNS)
    matrices = random.normal(size=(len(ends), *_CHECK_INNER_COLUMNS)).astype(jnp.bfloat16)
    sizes = jnp.array(_CHECK_SIZES, jnp.int32)
    rows = functools.partial(multiply, dtype=jnp.float32, interpret=interpret)
    found = (
        rows(x, matrices, sizes),
        rows(dy, matrices, sizes, transposed=True),
        multiply_rows(jnp.asarray(x), jnp.asarray(dy), sizes, interpret=interpret),
    )
    wide, wide_dy, exact = (one.astype(np.float64) for one in (x, dy, matrices))
    group = np.repeat(np.arange(len(ends)), _CHECK_SIZES)
    expected = (
        np.einsum("ri,rio->ro", wide, exact[group]),
        np.einsum("ro,rio->ri", wide_dy, exact[group]),
        np.stack([wide[group == one].T @ wide_dy[group == one] for one in range(len(ends))]),
    )
    pairs = [(np.asarray(one), other) for one, other in zip(found, expected, strict=True)]
    return float(max(np.abs(one - other).max() / np.abs(other).max() for one, other in pairs))


def _tile_rows(count: int, groups: int) -> int:
    """Return the rows of a tile: a power of two near the rows of an average group."""
    average = max(1, count // groups)
    return min(_ROWS_MAX, max(_ROWS_MIN, 1 << (average - 1).bit_length()), 1 << (count.bit_length() - 1))


def _tiles(sizes: jax.Array, rows: int, most: int) -> jax.Array:
    """Return the group, first row and end of each tile's rows, i32 [3, most]; tiles that are not needed have none."""
    ends = jnp.cumsum(sizes, dtype=jnp.int32)
    tiles_until = jnp.cumsum(-(-sizes // rows), dtype=jnp.int32)
    index = jnp.arange(most, dtype=jnp.int32)
    group = jnp.minimum(jnp.searchsorted(tiles_until, index, side="right"), len(sizes) - 1).astype(jnp.int32)
    of_group = index - (tiles_until - -(-sizes // rows))[group]
    first = (ends - sizes)[group] + of_group * rows
    return jnp.stack([group, first, jnp.minimum(first + rows, ends[group])])


def _row_tile(table: Any, x: Any, matrices: Any, out: Any, *, rows: int, transposed: bool) -> None:
    """Compute one tile of rows that belong to one group."""
    item, column = pl.program_id(0), pl.program_id(1) * _COLUMNS
    group, first, end = table[0, item], table[1, item], table[2, item]
    inner, columns = x.shape[1], out.shape[1]

    @pl.when(first < end)  # type: ignore[untyped-decorator]
    def _() -> None:
        here, own = _rows(first, end, rows, x.shape[0])
        across = pl.ds(column, _COLUMNS)
        in_columns = _below(column, _COLUMNS, columns)

        def step(index: jax.Array, total: jax.Array) -> jax.Array:
            along, in_inner = pl.ds(index * _INNER, _INNER), _below(index * _INNER, _INNER, inner)
            left = _read(x.at[here, along], _both(own, in_inner))
            if transposed:
                right = _read(matrices.at[group, across, along], _both(in_columns, in_inner))
                return total + triton.dot(left, right, trans_b=True, precision=_precision(left))
            right = _read(matrices.at[group, along, across], _both(in_inner, in_columns))
            return total + triton.dot(left, right, precision=_precision(left))

        total = jax.lax.fori_loop(0, pl.cdiv(inner, _INNER), step, jnp.zeros((rows, _COLUMNS), jnp.float32))
        triton.store(out.at[here, across], total.astype(out.dtype), mask=_both(own, in_columns))


def _group_tile(bounds: Any, left: Any, right: Any, out: Any, *, rows: int) -> None:
    """Compute one tile of one group's product of rows."""
    group, down, column = pl.program_id(0), pl.program_id(1) * _COLUMNS, pl.program_id(2) * _COLUMNS
    first, end = bounds[0, group], bounds[1, group]
    in_down, in_columns = _below(down, _COLUMNS, out.shape[1]), _below(column, _COLUMNS, out.shape[2])

    def step(index: jax.Array, total: jax.Array) -> jax.Array:
        here, own = _rows(first + index * rows, end, rows, left.shape[0])
        ours = _read(left.at[here, pl.ds(down, _COLUMNS)], _both(own, in_down))
        theirs = _read(right.at[here, pl.ds(column, _COLUMNS)], _both(own, in_columns))
        return total + triton.dot(ours, theirs, trans_a=True, precision=_precision(ours))

    nothing = jnp.zeros((_COLUMNS, _COLUMNS), jnp.float32)
    total = jax.lax.fori_loop(0, pl.cdiv(end - first, rows), step, nothing)
    place = out.at[group, pl.ds(down, _COLUMNS), pl.ds(column, _COLUMNS)]
    triton.store(place, total, mask=_both(in_down, in_columns))


def _read(ref: Any, mask: jax.Array | None) -> jax.Array:
    """Load a tile, with zeros where the mask is false."""
    return triton.load(ref) if mask is None else triton.load(ref, mask=mask, other=0)


def _rows(first: jax.Array, end: jax.Array, rows: int, count: int) -> tuple[Any, jax.Array]:
    """Return a slice of ``rows`` rows with those from ``first`` on, and which of them are below ``end``.

    The last slice begins earlier, so that none reaches beyond the array.
    """
    start = jnp.minimum(first, count - rows)
    index = start + jnp.arange(rows, dtype=jnp.int32)
    return pl.ds(start, rows), (index >= first) & (index < end)


def _below(start: Any, size: int, limit: int) -> jax.Array | None:
    """Return which elements of a slice lie in an axis; None if all slices do."""
    return None if limit % size == 0 else start + jnp.arange(size, dtype=jnp.int32) < limit


def _both(down: jax.Array | None, across: jax.Array | None) -> jax.Array | None:
    """Return the mask of a tile from the masks of its two axes."""
    if down is None:
        return None if across is None else across[None, :]
    return down[:, None] if across is None else down[:, None] & across[None, :]


def _precision(operand: jax.Array) -> jax.lax.Precision | None:
    """Return the precision of a product: that of float32 is not rounded to fewer bits."""
    return jax.lax.Precision.HIGHEST if operand.dtype == jnp.float32 else None
