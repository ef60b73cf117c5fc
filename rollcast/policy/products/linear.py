"""Multiply activations with kernels, in the configured precision; no other module does.

In the fp8 flow all three matrix products of a layer have E4M3 operands: x @ kernel, and in the backward pass dy @
kernel.T and x.T @ dy. Each operand is rounded along its own contraction (see rollcast.policy.products.quantise; Jet-RL,
sections 3 and 4), products are added up in float32, and a layer's output has the carrier's dtype. Rounding counts as
the identity in the backward pass (a straight-through estimate), so that the float32 master gets the gradient of the
rounded kernel. A rollout's kernel consists of the codes that the same rounding made, so that its forward pass equals
the learner's.

Gradients of weights are float32 from the products on, in every flow, and so are their sums over devices: bfloat16 sums
of thousands of tokens would lose the small terms (Micikevicius et al. 2018, "Mixed precision training", section 3.3).
"""

from __future__ import annotations

import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from rollcast.policy.products import fp8_unit
from rollcast.policy.products.quantise import (
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

#: How a kernel is read: in the activations' dtype; as a float32 master that is rounded to E4M3; or as E4M3 codes.
Flow = Literal["carrier", "fp8-master", "fp8-codes"]


class Linear(nnx.Module):  # type: ignore[misc]
    """A linear layer: x @ kernel (+ bias); the kernel is [inputs, outputs], the bias [outputs].

    In the flow "fp8-codes" there is a kernel_scale too: int8 exponents [blocks of inputs, blocks of outputs].
    """

    def __init__(self, inputs: int, outputs: int, *, bias: bool = False) -> None:
        self.flow: Flow = "carrier"
        self.kernel = nnx.Param(jnp.zeros((inputs, outputs), jnp.float32))
        self.kernel_scale: nnx.Param | None = nnx.data(None)
        self.bias = nnx.Param(jnp.zeros((outputs,), jnp.float32)) if bias else None

    def set_flow(self, flow: Flow) -> None:
        """Set how the kernel is read; for "fp8-codes" the kernel is replaced by zero codes and zero exponents."""
        self.flow = flow
        if flow == "fp8-codes":
            shape = self.kernel.shape
            self.kernel = nnx.Param(jnp.zeros(shape, CODE))
            self.kernel_scale = nnx.Param(jnp.zeros(blocks_of(shape, WEIGHT_BLOCK), jnp.int8))

    def __call__(self, x: jax.Array) -> jax.Array:
        product = self._product(x)
        return product if self.bias is None else product + carried_to(self.bias[...], product)

    def _product(self, x: jax.Array) -> jax.Array:
        if self.flow == "carrier":
            return carrier_matmul(x.dtype, x, self.kernel[...])
        if self.kernel_scale is None:
            return fp8_matmul(x, self.kernel[...])
        return _forward(x, Quantised(self.kernel[...], self.kernel_scale[...]))


def carried(weights: jax.Array, dtype: Any) -> jax.Array:
    """Return weights, the masters or a snapshot's, in the carrier's dtype; see settled."""
    return settled(weights, dtype).astype(dtype)


def settled(weights: jax.Array, dtype: Any) -> jax.Array:
    """Round weights to the values of ``dtype`` but keep their own dtype; gradients pass unchanged.

    XLA may drop a conversion to bfloat16 if a conversion to float32 follows, and the learner's masters would then
    differ from the snapshot; it keeps an explicit rounding.
    """
    if weights.dtype != jnp.float32 or dtype != jnp.bfloat16:
        return weights
    rounded_off = jax.lax.reduce_precision(weights, exponent_bits=8, mantissa_bits=7) - weights
    return weights + jax.lax.stop_gradient(rounded_off)


def carried_to(vector: jax.Array, like: jax.Array) -> jax.Array:
    """Return a vector [width], repeated to the shape of ``like`` [..., width] and in its dtype; see carried.

    It is repeated before it is rounded, so that its gradient is added up over tokens and devices in the vector's dtype,
    float32, and not in the carrier's.
    """
    return carried(jnp.broadcast_to(vector, like.shape), like.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def carrier_matmul(dtype: Any, x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Return x [..., inputs] @ kernel [inputs, outputs] in ``dtype``, with both operands in x's dtype, the carrier's.

    Only float32 masters have gradients, which are added up over tokens and over devices in float32. Automatic
    differentiation would round each device's share to the carrier's dtype first.
    """
    return _carrier_forward(dtype, x, kernel)[0]


def _carrier_forward(dtype: Any, x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    read = carried(kernel, x.dtype)
    # As one matrix: the kernel's gradient is then one product too, which on a CPU is a third faster.
    product = jnp.matmul(_rows(x), read, preferred_element_type=dtype)
    return product.reshape(*x.shape[:-1], product.shape[1]), (x, read)


def _carrier_backward(_dtype: Any, saved: tuple[jax.Array, jax.Array], dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, read = saved
    rows = _rows(dy.astype(x.dtype))
    # Transposed operands would be gathered from their shards a second time.
    dx = jnp.einsum("ro,io->ri", rows, read)
    dkernel = jnp.einsum("ri,ro->io", _rows(x), rows, preferred_element_type=jnp.float32)
    return dx.reshape(x.shape), dkernel


carrier_matmul.defvjp(_carrier_forward, _carrier_backward)


@jax.custom_vjp  # type: ignore[untyped-decorator]
def fp8_matmul(x: jax.Array, master: jax.Array) -> jax.Array:
    """Return x [..., inputs] @ master f32 [inputs, outputs], both rounded to E4M3, in x's dtype, the carrier's.

    The gradient of x has the carrier's dtype, that of the master is f32; their products have E4M3 operands too.
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
    """Return x @ kernel in x's dtype; the learner's masters and the rollout's codes both take this path."""
    product = _product(_rows(x), kernel, WEIGHT_BLOCK)
    return product.astype(x.dtype).reshape(*x.shape[:-1], product.shape[1])


def _product(left: jax.Array, right: jax.Array | Quantised, right_block: Block) -> jax.Array:
    """Return left @ right f32: left [rows, inner] rounded in column groups, right [inner, columns] in its blocks.

    Without an FP8 unit the values of the codes are multiplied. They are bfloat16 numbers, so every product is exact, in
    bfloat16 units too, and only the sum has float32's rounding.
    """
    tokens: fp8_unit.TokensAlong = "contraction" if right_block == ALONG_ROWS else "rows"
    if fp8_unit.is_available() and fp8_unit.takes(left.shape[0 if tokens == "rows" else 1]):
        codes = right if isinstance(right, Quantised) else quantise(right, right_block)
        return fp8_unit.multiply_tokens(quantise(left, ALONG_COLUMNS), codes, tokens=tokens)
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
