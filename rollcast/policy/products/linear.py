"""Multiply activations with kernels, in the configured precision; no other module does.

In the fp8 flow all three matrix products of a layer have E4M3 operands: x @ kernel, and in the backward pass dy @
kernel.T and x.T @ dy. Each operand is rounded along its own contraction (see rollcast.policy.products.quantise; Jet-RL,
sections 3 and 4), products are added up in float32, and a layer's output has the carrier's dtype. Rounding counts as
the identity in the backward pass (a straight-through estimate), so that the float32 master gets the gradient of the
rounded kernel. A rollout's kernel consists of the codes that the same rounding made, so that its forward pass equals
the learner's.

A kernel that is not differentiated, that of a frozen base, gets no product x.T @ dy, and its layer keeps no x. Adapters
of low rank over it (Hu et al. 2021, "LoRA", section 4.1) compute in the carrier's dtype in every flow, the narrow
product first. Such a kernel may be NVFP4 codes (rollcast.policy.products.nvfp4), which are turned into the carrier's
numbers where they are multiplied, in the backward pass again: of all layers together the codes alone are kept.

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
from rollcast.policy.products.nvfp4 import Packed, packed_zeros, unpack
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

#: How a kernel is read: in the activations' dtype; as a float32 master that is rounded to E4M3; or as codes.
Flow = Literal["carrier", "fp8-master", "fp8-codes", "nvfp4-codes"]


class Linear(nnx.Module):  # type: ignore[misc]
    """A linear layer: x @ kernel (+ bias); the kernel is [inputs, outputs], the bias [outputs].

    In the flow "fp8-codes" there is a kernel_scale too: int8 exponents [blocks of inputs, blocks of outputs]. In the
    flow "nvfp4-codes" kernel, kernel_scale and kernel_tensor_scale are the fields of a `Packed`. With an
    adapter, lora_a [inputs, rank] and lora_b [rank, outputs], ((x @ lora_a) @ lora_b) * lora_scale is added.
    """

    def __init__(self, inputs: int, outputs: int, *, bias: bool = False) -> None:
        self.flow: Flow = "carrier"
        self.kernel = nnx.Param(jnp.zeros((inputs, outputs), jnp.float32))
        self.kernel_scale: nnx.Param | None = nnx.data(None)
        self.kernel_tensor_scale: nnx.Param | None = nnx.data(None)
        self.lora_a: nnx.Param | None = nnx.data(None)
        self.lora_b: nnx.Param | None = nnx.data(None)
        self.lora_scale = 0.0
        self.lora_chosen: jax.Array | None = nnx.data(None)
        """Where adapters stand side by side, the columns of lora_a that each row uses: bool [batch, columns]."""
        self.bias = nnx.Param(jnp.zeros((outputs,), jnp.float32)) if bias else None

    def set_flow(self, flow: Flow) -> None:
        """Set how the kernel is read; where it is read as codes it is replaced by zero codes and scales."""
        self.flow, shape = flow, self.kernel.shape
        if flow == "nvfp4-codes":
            self.kernel, self.kernel_scale, self.kernel_tensor_scale = map(nnx.Param, packed_zeros(*shape))
        elif flow == "fp8-codes":
            self.kernel = nnx.Param(jnp.zeros(shape, CODE))
            self.kernel_scale = nnx.Param(jnp.zeros(blocks_of(shape, WEIGHT_BLOCK), jnp.int8))

    def add_adapter(self, rank: int, scale: float) -> None:
        """Add an adapter of zeros."""
        inputs, outputs = self.kernel.shape
        self.lora_a = nnx.Param(jnp.zeros((inputs, rank), jnp.float32))
        self.lora_b = nnx.Param(jnp.zeros((rank, outputs), jnp.float32))
        self.lora_scale = scale

    def __call__(self, x: jax.Array) -> jax.Array:
        product = self._product(x)
        if self.lora_a is not None and self.lora_b is not None:
            narrow = carrier_matmul(x.dtype, x, self.lora_a[...])
            if self.lora_chosen is not None:
                narrow = jnp.where(self.lora_chosen[:, None, :], narrow, 0)
            product = product + carrier_matmul(x.dtype, narrow, self.lora_b[...]) * self.lora_scale
        return product if self.bias is None else product + carried_to(self.bias[...], product)

    def _product(self, x: jax.Array) -> jax.Array:
        if self.flow == "carrier":
            return carrier_matmul(x.dtype, x, self.kernel[...])
        kernel = self.kernel[...]
        if self.kernel_scale is not None and self.kernel_tensor_scale is not None:
            return nvfp4_matmul(x, Packed(kernel, self.kernel_scale[...], self.kernel_tensor_scale[...]))
        return fp8_matmul(x, kernel if self.kernel_scale is None else Quantised(kernel, self.kernel_scale[...]))


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
    return _carrier_product(dtype, x, kernel)


def _carrier_product(dtype: Any, x: jax.Array, kernel: jax.Array) -> jax.Array:
    # As one matrix: the kernel's gradient is then one product too, which on a CPU is a third faster.
    product = jnp.matmul(_rows(x), carried(kernel, x.dtype), preferred_element_type=dtype)
    return product.reshape(*x.shape[:-1], product.shape[1])


def _carrier_forward(dtype: Any, x: Any, kernel: Any) -> tuple[jax.Array, tuple[jax.Array | None, jax.Array]]:
    """Take x and kernel with whether they are differentiated; x is needed for the kernel's gradient alone."""
    product = _carrier_product(dtype, x.value, kernel.value)
    return product, (x.value if kernel.perturbed else None, carried(kernel.value, x.value.dtype))


def _carrier_backward(
    _dtype: Any, saved: tuple[jax.Array | None, jax.Array], dy: jax.Array
) -> tuple[jax.Array, jax.Array | None]:
    x, read = saved
    rows = _rows(dy.astype(read.dtype))
    # Transposed operands would be gathered from their shards a second time.
    dx = jnp.einsum("ro,io->ri", rows, read).reshape(*dy.shape[:-1], read.shape[0])
    return dx, None if x is None else jnp.einsum("ri,ro->io", _rows(x), rows, preferred_element_type=jnp.float32)


carrier_matmul.defvjp(_carrier_forward, _carrier_backward, symbolic_zeros=True)


@jax.custom_vjp  # type: ignore[untyped-decorator]
def nvfp4_matmul(x: jax.Array, kernel: Packed) -> jax.Array:
    """Return x [..., inputs] @ kernel [inputs, outputs] in x's dtype, the carrier's, as is the gradient of x.

    The kernel's numbers are rounded to that dtype too. It has no gradient.
    """
    return _carrier_product(x.dtype, x, _unpacked_for(x, kernel))


def _unpacked_for(operand: jax.Array, kernel: Packed) -> jax.Array:
    """Return the kernel's numbers f32, made once the other operand exists.

    XLA would otherwise make those of all layers once, before the sampler's loop over tokens, and keep them.
    """
    _, kernel = jax.lax.optimization_barrier((operand, kernel))
    return unpack(kernel)


def _nvfp4_forward(x: jax.Array, kernel: Packed) -> tuple[jax.Array, Packed]:
    return nvfp4_matmul(x, kernel), kernel


def _nvfp4_backward(kernel: Packed, dy: jax.Array) -> tuple[jax.Array, None]:
    return _carrier_backward(dy.dtype, (None, carried(_unpacked_for(dy, kernel), dy.dtype)), dy)[0], None


nvfp4_matmul.defvjp(_nvfp4_forward, _nvfp4_backward)


@jax.custom_vjp  # type: ignore[untyped-decorator]
def fp8_matmul(x: jax.Array, kernel: jax.Array | Quantised) -> jax.Array:
    """Return x [..., inputs] @ kernel [inputs, outputs], both in E4M3, in x's dtype, the carrier's.

    The kernel is a master f32, which is rounded here and gets a gradient f32, or the codes that the same rounding made,
    which get none. The gradient of x has the carrier's dtype. The gradients' products have E4M3 operands too.
    """
    return _forward(x, kernel)


def _fp8_forward(x: Any, kernel: Any) -> tuple[jax.Array, tuple[jax.Array | None, jax.Array | Quantised]]:
    """Take x and kernel with whether they are differentiated, as _carrier_forward does."""
    is_master = not isinstance(kernel, Quantised)
    values = jax.tree.map(lambda leaf: leaf.value, kernel, is_leaf=lambda leaf: hasattr(leaf, "perturbed"))
    return _forward(x.value, values), (x.value if is_master and kernel.perturbed else None, values)


def _fp8_backward(
    saved: tuple[jax.Array | None, jax.Array | Quantised], dy: jax.Array
) -> tuple[jax.Array, jax.Array | None]:
    x, kernel = saved
    # Blocks of kernels are square, so the codes of the transpose are the transposed codes.
    turned = Quantised(*(leaf.T for leaf in kernel)) if isinstance(kernel, Quantised) else kernel.T
    dx = _product(_rows(dy), turned, WEIGHT_BLOCK).astype(dy.dtype).reshape(*dy.shape[:-1], -1)
    return dx, None if x is None else _product(_rows(x).T, _rows(dy), ALONG_ROWS)


fp8_matmul.defvjp(_fp8_forward, _fp8_backward, symbolic_zeros=True)


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
