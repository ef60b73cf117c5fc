"""Sample with the adapters of several versions at once: each row of a batch computes with those of its own version.

The adapters of all slots stand side by side as one adapter of as many times the rank: A [inputs, slots x rank], B
[slots x rank, outputs]. A row keeps the columns x A of its slot and sets the others to zero, so that its product with B
is (x A) B of its version alone, and the base's x W is computed once for all rows. Punica (Chen et al. 2023, section 4)
gathers each row's adapters instead, which suits thousands of them; here there are two.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from rollcast.policy.lora import A, is_adapter
from rollcast.policy.model import Decoder
from rollcast.policy.params import Params
from rollcast.policy.products.linear import Linear


def side_by_side(slots: Sequence[Params]) -> Params:
    """Return the adapters by name of all slots as one, where they lie. All are of one model."""
    return {
        name: jnp.concatenate([one[name] for one in slots], axis=1 if name.endswith(f".{A}") else 0)
        for name in slots[0]
        if is_adapter(name)
    }


def choose(model: Decoder, slots: int, chosen: jax.Array) -> None:
    """Have each row of a batch computed with the adapters of its slot.

    Args:
        model: bound to adapters side by side.
        chosen: i32 [batch], the slot of each row.
    """
    for _, module in nnx.iter_modules(model.layers):
        if isinstance(module, Linear) and module.lora_a is not None:
            columns = module.lora_a.shape[1]
            of_slot = jnp.arange(columns, dtype=jnp.int32) // (columns // slots)
            module.lora_chosen = nnx.data(of_slot[None, :] == chosen[:, None])
