"""Call splash attention, jax's fused kernel for TPUs, with blocks that suit the length of the rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel, splash_attention_mask

# Tokens of a block of splash. 512 is what MaxText uses by default; jax's own 128 means 16 times as many steps of the
# grid. Smaller ones serve rows that larger ones would lengthen by more than an eighth.
_BLOCKS = (512, 256, 128)


def splash_block(time: int) -> int:
    """Return the tokens of a block: the largest that lengthens rows of ``time`` tokens by an eighth at most."""
    return next((block for block in _BLOCKS if -time % block <= time // 8), _BLOCKS[-1])


def splash_attention(
    queries: jax.Array, keys: jax.Array, values: jax.Array, segments: jax.Array, *, block: int, interpret: bool = False
) -> jax.Array:
    """Call jax's TPU kernel once a row; arguments and result as in flash.flash_attention, ``time`` in whole blocks.

    ``interpret`` runs the kernel on any device, slowly.
    """
    time, heads, head_size = queries.shape[1:]
    sizes = splash_attention_kernel.BlockSizes(
        block_q=block,
        block_kv=block,
        block_q_dkv=block,
        block_kv_dkv=block,
        block_q_dq=block,
        block_kv_dq=block,
    )
    kernel = splash_attention_kernel.make_splash_mha_single_device(
        splash_attention_mask.MultiHeadMask([splash_attention_mask.CausalMask((time, time))] * heads),
        block_sizes=sizes,
        interpret=interpret,
    )

    def row(query: jax.Array, key: jax.Array, value: jax.Array, own: jax.Array) -> jax.Array:
        mixed: jax.Array = kernel(query, key, value, splash_attention_kernel.SegmentIds(own, own))
        return mixed

    heads_first = (jnp.moveaxis(array, 1, 2) for array in (queries * head_size**-0.5, keys, values))
    return jnp.moveaxis(jax.vmap(row)(*heads_first, segments), 1, 2)
