"""The one place where a kernel meets an activation, and the precision in which it does.

In the fp8 flow all three matrix products of a layer have E4M3 operands: x @ kernel, and in the backward pass
dy @ kernel.T and x.T @ dy. Each operand is rounded along its own contraction (see rollcast.policy.quantise; Jet-RL,
sections 3 and 4), products are added up in float32, and what leaves a layer is in the carrier's dtype. Rounding counts
as the identity in the backward pass (a straight-through estimate), so that the float32 master gets the gradient of the
rounded kernel. A rollout's kernel comes as the codes that the same rounding made: its forward pass is the learner's.
"""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from rollcast.policy import fp8_unit
from rollcast.policy.quantise import (
    ALONG_COLUMNS,
    ALONG_ROWS,
    CODE,
    WEIGHT_BLOCK,
    Block,
    Quantised,
    blocks_of,
    dequantise,
    quantise,
    rounded,
)

#: What a kernel is: read in the activations' dtype; a float32 master rounded to E4M3 on the way; or E4M3 codes.
Flow = Literal["carrier", "fp8-master", "fp8-codes"]


class Linear(nnx.Module):  # type: ignore[misc]
    """x @ kernel (+ bias); kernel is [inputs, outputs], bias [outputs].

    With codes there is a kernel_scale too: int8 exponents [blocks of inputs, blocks of outputs].
    """

    def __init__(self, inputs: int, outputs: int, *, bias: bool = False) -> None:
        self.flow: Flow = "carrier"
        self.kernel = nnx.Param(jnp.zeros((inputs, outputs), jnp.float32))
        self.kernel_scale: nnx.Param | None = nnx.data(None)
        self.bias = nnx.Param(jnp.zeros((outputs,), jnp.float32)) if bias else None

    def set_flow(self, flow: Flow) -> None:
        """Read the kernel as ``flow`` says from now on; with codes, the kernel becomes a place for them."""
        self.flow = flow
        if flow == "fp8-codes":
            shape = self.kernel.shape
            self.kernel = nnx.Param(jnp.zeros(shape, CODE))
            self.kernel_scale = nnx.Param(jnp.zeros(blocks_of(shape, WEIGHT_BLOCK), jnp.int8))

    def __call__(self, x: jax.Array) -> jax.Array:
        product = self._product(x)
        return product if self.bias is None else product + carried(self.bias[...], x.dtype)

    def _product(self, x: jax.Array) -> jax.Array:
        if self.flow == "carrier":
            # As one matrix: the kernel's gradient is then one product too, which on a CPU is a third faster.
            product = _rows(x) @ carried(self.kernel[...], x.dtype)
            return product.reshape(*x.shape[:-1], product.shape[1])
        if self.kernel_scale is None:
            return fp8_matmul(x, self.kernel[...])
        return _forward(x, Quantised(self.kernel[...], self.kernel_scale[...]))


def carried(weights: jax.Array, dtype: Any) -> jax.Array:
    """Weights, masters or a snapshot's, in the carrier's dtype; see settled."""
    return settled(weights, dtype).astype(dtype)


def settled(weights: jax.Array, dtype: Any) -> jax.Array:
    """Weights with the values that they have in ``dtype``, in their own dtype; gradients pass as they are.

    XLA may leave out a conversion to bfloat16 where float32 follows, and the learner's masters would then differ from
    the snapshot; an explicit rounding stays.
    """
    if weights.dtype != jnp.float32 or dtype != jnp.bfloat16:
        return weights
    rounded_off = jax.lax.reduce_precision(weights, exponent_bits=8, mantissa_bits=7) - weights
    return weights + jax.lax.stop_gradient(rounded_off)


@jax.custom_vjp  # type: ignore[untyped-decorator]
def fp8_matmul(x: jax.Array, master: jax.Array) -> jax.Array:
    """x [..., inputs] in the carrier's dtype @ master f32 [inputs, outputs], both rounded to E4M3; like x.

    Gradients: of x in the carrier's dtype, of the master in f32; of operands rounded to E4M3 too.
    """
    return _forward(x, master)


def _fp8_forward(x: jax.Array, master: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return fp8_matmul(x, master), (x, master)


def _fp8_backward(saved: tuple[jax.Array, jax.Array], dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, master = saved
    dx = _product(_rows(dy), master.T, WEIGHT_BLOCK)
    dmaster = _product(_rows(x).T, _rows(dy), ALONG_ROWS)
    return dx.astype(x.dtype).reshape(x.shape), dmaster


fp8_matmul.defvjp(_fp8_forward, _fp8_backward)


def _forward(x: jax.Array, kernel: jax.Array | Quantised) -> jax.Array:
    """x @ kernel, like x; the learner's masters and the rollout's codes both come through here."""
    product = _product(_rows(x), kernel, WEIGHT_BLOCK)
    return product.astype(x.dtype).reshape(*x.shape[:-1], product.shape[1])


def _product(left: jax.Array, right: jax.Array | Quantised, right_block: Block) -> jax.Array:
    """left [rows, inner], rounded in groups of its columns, @ right [inner, columns], rounded in its blocks; f32.

    Without an FP8 unit the values of the codes are multiplied. They are bfloat16 numbers: every product is exact, in
    bfloat16 units too, and only the sum is float32's.
    """
    if fp8_unit.is_there():
        codes = right if isinstance(right, Quantised) else quantise(right, right_block)
        return fp8_unit.multiply(quantise(left, ALONG_COLUMNS), codes)
    values = dequantise(right, right_block) if isinstance(right, Quantised) else rounded(right, right_block)
    product: jax.Array = jax.lax.platform_dependent(
        rounded(left, ALONG_COLUMNS), values, cpu=_multiply_f32, default=_multiply_bf16
    )
    return product


def _multiply_f32(left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.matmul(left, right)


def _multiply_bf16(left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.matmul(left.astype(jnp.bfloat16), right.astype(jnp.bfloat16), preferred_element_type=jnp.float32)


def _rows(x: jax.Array) -> jax.Array:
    return x.reshape(-1, x.shape[-1])
