"""Multiply rows that are sorted by expert, each with the kernel of its expert, in the configured precision.

The rules are those of rollcast.policy.products.linear: weights' gradients are float32 from the products on, and so are
their sums over devices. FP8 units have no grouped product here: the values of E4M3 codes, which are bfloat16 numbers,
are multiplied in bfloat16 instead, so that only the sums' rounding differs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from rollcast.policy.products.linear import Flow, carried
from rollcast.policy.products.quantise import (
    ALONG_COLUMNS,
    ALONG_ROWS,
    CODE,
    WEIGHT_BLOCK,
    Block,
    Quantised,
    blocks_of,
    dequantise,
    rounded,
)

Product = Callable[..., jax.Array]


class Kernel(NamedTuple):
    """The kernels of a layer's experts, or of a device's share of them."""

    kernel: jax.Array  # [experts, inputs, outputs], masters or as a rollout reads them
    scale: jax.Array | None  # int8 [experts, blocks of inputs, blocks of outputs], of E4M3 codes only


class GroupedLinear(nnx.Module):  # type: ignore[misc]
    """One kernel [inputs, outputs] for each expert, stacked; see rollcast.policy.products.linear.Linear."""

    def __init__(self, experts: int, inputs: int, outputs: int) -> None:
        self.flow: Flow = "carrier"
        self.kernel = nnx.Param(jnp.zeros((experts, inputs, outputs), jnp.float32))
        self.kernel_scale: nnx.Param | None = nnx.data(None)

    def set_flow(self, flow: Flow) -> None:
        """Set how the kernels are read, as Linear.set_flow does."""
        self.flow = flow
        if flow == "fp8-codes":
            experts, inputs, outputs = self.kernel.shape
            self.kernel = nnx.Param(jnp.zeros((experts, inputs, outputs), CODE))
            blocks = blocks_of((inputs, outputs), WEIGHT_BLOCK)
            self.kernel_scale = nnx.Param(jnp.zeros((experts, *blocks), jnp.int8))

    def read(self) -> Kernel:
        """Return the tensors."""
        return Kernel(self.kernel[...], None if self.kernel_scale is None else self.kernel_scale[...])


def grouped_matmul(
    x: jax.Array, kernel: Kernel, sizes: jax.Array, flow: Flow, gathered_over: tuple[str, ...] = ()
) -> jax.Array:
    """Return each row of x [rows, inputs] times its expert's kernel, in x's dtype, the carrier's.

    Args:
        sizes: i32 [experts], rows of each expert; rows are sorted by expert, and the sizes add up to all rows. Without
            a gradient there may be further rows, whose results are undefined.
        flow: how the kernels are read.
        gathered_over: the mesh axes that the experts are divided among, inside a shard_map: ``kernel`` is this device's
            share. The values are gathered in the precision that they are multiplied in, for the forward pass and again
            for the backward pass, whose gradients each device gets for its share. Empty: all experts are here.
    """
    return _matmul(flow, gathered_over, x, kernel, sizes)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _matmul(flow: Flow, gathered_over: tuple[str, ...], x: jax.Array, kernel: Kernel, sizes: jax.Array) -> jax.Array:
    return _forward(x, _gathered(_values(kernel, flow, x.dtype), gathered_over), sizes, flow)


class _Saved(NamedTuple):
    """What the backward pass needs."""

    x: jax.Array | None  # for the kernels' gradients; None: they have none, because they are codes or frozen
    # The share is kept and gathered again: without rematerialisation the gathered kernels of all layers would be kept.
    kernel: Kernel
    sizes: jax.Array


def _matmul_forward(
    flow: Flow, gathered_over: tuple[str, ...], x: Any, kernel: Kernel, sizes: Any
) -> tuple[jax.Array, _Saved]:
    """Take operands with whether they are differentiated."""
    values = Kernel(kernel.kernel.value, None if kernel.scale is None else kernel.scale.value)
    saved = _Saved(x.value if kernel.kernel.perturbed else None, values, sizes.value)
    return _matmul(flow, gathered_over, x.value, values, sizes.value), saved


def _matmul_backward(
    flow: Flow, gathered_over: tuple[str, ...], saved: _Saved, dy: jax.Array
) -> tuple[jax.Array, Kernel | None, None]:
    values = _gathered(_values(saved.kernel, flow, dy.dtype), gathered_over)
    dx = _times_transposed(_rounded(dy, flow, ALONG_COLUMNS, dy.dtype), values, saved.sizes, dy.dtype)
    if saved.x is None:
        return dx, None, None
    left, right = (_rounded(one, flow, ALONG_ROWS, dy.dtype) for one in (saved.x, dy))
    dkernel = _transposed_times(left, right, saved.sizes)
    if gathered_over:
        dkernel = jax.lax.psum_scatter(dkernel, gathered_over, scatter_dimension=0, tiled=True)
    return dx, Kernel(dkernel, None), None


_matmul.defvjp(_matmul_forward, _matmul_backward, symbolic_zeros=True)


def _values(kernel: Kernel, flow: Flow, dtype: Any) -> jax.Array:
    """Return the numbers that are multiplied: in the carrier's dtype, or what E4M3 codes stand for in bfloat16."""
    if kernel.scale is not None:
        return dequantise(Quantised(kernel.kernel, kernel.scale), WEIGHT_BLOCK).astype(jnp.bfloat16)
    if flow == "fp8-master":
        return rounded(kernel.kernel, WEIGHT_BLOCK).astype(jnp.bfloat16)
    return carried(kernel.kernel, dtype)


def _gathered(values: jax.Array, over: tuple[str, ...]) -> jax.Array:
    if not over:
        return values
    gathered: jax.Array = jax.lax.all_gather(values, over, axis=0, tiled=True)
    return gathered


def _rounded(rows: jax.Array, flow: Flow, block: Block, dtype: Any) -> jax.Array:
    """Return rows as they are multiplied. In the fp8 flow groups of rows may cross from one expert to the next."""
    return rows.astype(dtype) if flow == "carrier" else rounded(rows, block).astype(jnp.bfloat16)


def _forward(x: jax.Array, values: jax.Array, sizes: jax.Array, flow: Flow) -> jax.Array:
    return _times(_rounded(x, flow, ALONG_COLUMNS, x.dtype), values, sizes, x.dtype)


# The three products, each added up in float32. On NVIDIA GPUs XLA would multiply every row with every kernel.


def _times(x: jax.Array, kernels: jax.Array, sizes: jax.Array, dtype: Any) -> jax.Array:
    """Return x [rows, inputs] @ kernels [experts, inputs, outputs], [rows, outputs] in ``dtype``."""
    return _by_platform(
        functools.partial(_nvidia_kernels().multiply, dtype=dtype),
        functools.partial(jax.lax.ragged_dot, preferred_element_type=dtype),
        (x, kernels, sizes),
    )


def _times_transposed(dy: jax.Array, kernels: jax.Array, sizes: jax.Array, dtype: Any) -> jax.Array:
    """Return dy [rows, outputs] @ the transposes of kernels [experts, inputs, outputs], [rows, inputs] in ``dtype``."""
    return _by_platform(
        functools.partial(_nvidia_kernels().multiply, dtype=dtype, transposed=True),
        functools.partial(
            jax.lax.ragged_dot_general, ragged_dot_dimension_numbers=_TRANSPOSED, preferred_element_type=dtype
        ),
        (dy, kernels, sizes),
    )


def _transposed_times(x: jax.Array, dy: jax.Array, sizes: jax.Array) -> jax.Array:
    """Return for each expert the transpose of its rows of x [rows, inputs] @ those of dy [rows, outputs], f32."""
    return _by_platform(
        _nvidia_kernels().multiply_rows,
        functools.partial(
            jax.lax.ragged_dot_general, ragged_dot_dimension_numbers=_BY_ROWS, preferred_element_type=jnp.float32
        ),
        (x, dy, sizes),
    )


def _nvidia_kernels() -> ModuleType:
    """Import the kernels, and with them Pallas: only models with experts spend half a second and 16 MiB on it."""
    from rollcast.policy.kernels import grouped

    return grouped


def _by_platform(on_nvidia: Product, elsewhere: Product, operands: tuple[jax.Array, ...]) -> jax.Array:
    if not _nvidia_kernels().is_available():
        return elsewhere(*operands)
    product: jax.Array = jax.lax.platform_dependent(*operands, cuda=on_nvidia, default=elsewhere)
    return product


_TRANSPOSED = jax.lax.RaggedDotDimensionNumbers((((1,), (2,)), ((), ())), [0], [0])
_BY_ROWS = jax.lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], [])
