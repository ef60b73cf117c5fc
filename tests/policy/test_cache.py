from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollcast.policy.cache import decode, prefill
from rollcast.policy.params import Params, bind, initial_params
from tests.policy.test_model import TOKENS, row
from tests.policy.tiny import TINY, reference_logits


def decode_by_steps(params: Params, context: list[int], rest: list[int], left: int) -> list[jax.Array]:
    """Logits after the context and after each further token, through the cache."""
    width = left + len(context)
    read = jax.jit(lambda params, *inputs: prefill(bind(TINY, params), *inputs, spare_slots=len(rest)))
    go_on = jax.jit(lambda params, *inputs: decode(bind(TINY, params), *inputs))
    logits, cache = read(params, *row(context, left=left))
    slots = jnp.arange(width + len(rest))
    found = [logits[0]]
    for index, token in enumerate(rest):
        visible = (slots >= left) & (slots <= width + index)
        position = jnp.array([len(context) + index], jnp.int32)
        new = jnp.array([token], jnp.int32)
        logits, cache = go_on(params, new, position, visible[None], cache, jnp.int32(width + index))
        found.append(logits[0])
    return found


@pytest.mark.parametrize("left", [0, 3])
def test_prefill_and_decode_give_the_training_forwards_logits(left: int) -> None:
    params = initial_params(TINY, 5)
    expected = reference_logits(TINY, params, TOKENS)
    for offset, logits in enumerate(decode_by_steps(params, TOKENS[:3], TOKENS[3:], left)):
        np.testing.assert_allclose(logits, expected[2 + offset], atol=3e-6)
