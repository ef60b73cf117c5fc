from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollcast.policy.config import ModelConfig
from rollcast.policy.params import Params, bind, initial_params
from tests.policy.tiny import TINY, reference_logits

TOKENS = [3, 1, 4, 1, 5, 9, 2]


def row(tokens: list[int], *, left: int = 0, right: int = 0) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Tokens, positions and valid [1, left + time + right], padded on both sides."""
    padded = np.pad(np.array(tokens, np.int32), (left, right))
    positions = np.pad(np.arange(len(tokens), dtype=np.int32), (left, right))
    valid = np.pad(np.ones(len(tokens), bool), (left, right))
    return jnp.asarray(padded[None]), jnp.asarray(positions[None]), jnp.asarray(valid[None])


def forward(config: ModelConfig, params: Params, *inputs: jax.Array) -> jax.Array:
    logits: jax.Array = jax.jit(lambda params, inputs: bind(config, params)(*inputs))(params, inputs)
    return logits


@pytest.mark.parametrize("tied", [True, False])
def test_logits_agree_with_an_independent_forward_pass(tied: bool) -> None:
    config = TINY.model_copy(update={"tied_embeddings": tied})
    params = initial_params(config, 5)
    logits = forward(config, params, *row(TOKENS))
    assert logits.dtype == jnp.float32
    np.testing.assert_allclose(logits[0], reference_logits(config, params, TOKENS), atol=3e-6)


@pytest.mark.parametrize(("left", "right"), [(4, 0), (0, 4), (2, 2)])
def test_padding_on_either_side_changes_nothing(left: int, right: int) -> None:
    params = initial_params(TINY, 5)
    padded = forward(TINY, params, *row(TOKENS, left=left, right=right))[0, left : left + len(TOKENS)]
    np.testing.assert_allclose(padded, reference_logits(TINY, params, TOKENS), atol=3e-6)


def test_a_row_of_padding_only_stays_finite() -> None:
    tokens = jnp.zeros((1, 4), jnp.int32)
    logits = forward(TINY, initial_params(TINY, 5), tokens, tokens, jnp.zeros((1, 4), bool))
    assert bool(jnp.all(jnp.isfinite(logits)))


def decode_by_steps(params: Params, context: list[int], rest: list[int], left: int) -> list[jax.Array]:
    """Logits after the context and after each further token, through the cache."""
    width = left + len(context)
    prefill = jax.jit(lambda params, *inputs: bind(TINY, params).prefill(*inputs, spare_slots=len(rest)))
    decode = jax.jit(lambda params, *inputs: bind(TINY, params).decode(*inputs))
    logits, cache = prefill(params, *row(context, left=left))
    slots = jnp.arange(width + len(rest))
    found = [logits[0]]
    for index, token in enumerate(rest):
        visible = (slots >= left) & (slots <= width + index)
        position = jnp.array([len(context) + index], jnp.int32)
        new = jnp.array([token], jnp.int32)
        logits, cache = decode(params, new, position, visible[None], cache, jnp.int32(width + index))
        found.append(logits[0])
    return found


@pytest.mark.parametrize("left", [0, 3])
def test_prefill_and_decode_give_the_training_forwards_logits(left: int) -> None:
    params = initial_params(TINY, 5)
    expected = reference_logits(TINY, params, TOKENS)
    for offset, logits in enumerate(decode_by_steps(params, TOKENS[:3], TOKENS[3:], left)):
        np.testing.assert_allclose(logits, expected[2 + offset], atol=3e-6)


def test_bfloat16_computes_in_bfloat16_with_float32_logits() -> None:
    config = TINY.model_copy(update={"precision": "bfloat16"})
    params = initial_params(config, 5)
    logits = forward(config, params, *row(TOKENS))
    exact = reference_logits(config, params, TOKENS)
    assert logits.dtype == jnp.float32
    assert 1e-5 < np.abs(logits[0] - exact).max() < 0.2
