"""Test the load-balancing loss."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollcast.policy.experts.balance import balance_loss, busiest_expert_share
from rollcast.policy.experts.layer import Load

EXPERTS, CHOSEN = 6, 2


def loads(logits: np.ndarray[Any, np.dtype[np.float32]]) -> Load:
    """Return the loads by layer of router logits f32 [layers, tokens, experts]."""
    probabilities = jax.nn.softmax(jnp.asarray(logits), axis=-1)
    _, chosen = jax.lax.top_k(probabilities, CHOSEN)
    counts = jax.nn.one_hot(chosen, EXPERTS).sum((1, 2))
    tokens = jnp.full(len(logits), logits.shape[1], jnp.float32)
    return Load(counts, probabilities.sum(1), tokens)


def test_even_loads_give_the_number_of_chosen_experts_and_one_expert_for_all_more() -> None:
    even = Load(jnp.full((2, EXPERTS), 4.0), jnp.full((2, EXPERTS), 2.0), jnp.full(2, 12.0))
    np.testing.assert_allclose(balance_loss(even), CHOSEN, rtol=1e-6)
    np.testing.assert_allclose(busiest_expert_share(even), 1 / EXPERTS, rtol=1e-6)
    counts = jnp.zeros((1, EXPERTS)).at[0, :CHOSEN].set(12.0)
    uneven = Load(counts, counts / CHOSEN, jnp.full(1, 12.0))
    np.testing.assert_allclose(balance_loss(uneven), EXPERTS, rtol=1e-6)
    np.testing.assert_allclose(busiest_expert_share(uneven), 1 / CHOSEN, rtol=1e-6)


def test_no_token_costs_nothing() -> None:
    none = Load(jnp.zeros((2, EXPERTS)), jnp.zeros((2, EXPERTS)), jnp.zeros(2))
    assert balance_loss(none) == 0.0
    assert busiest_expert_share(none) == 0.0


def test_each_layer_has_the_loss_that_transformers_gives_it() -> None:
    torch = pytest.importorskip("torch")
    qwen3_moe = pytest.importorskip("transformers.models.qwen3_moe.modeling_qwen3_moe")
    logits = np.random.default_rng(0).normal(0, 1, (3, 20, EXPERTS)).astype(np.float32)
    theirs = [qwen3_moe.load_balancing_loss_func((torch.tensor(one),), EXPERTS, CHOSEN).item() for one in logits]
    np.testing.assert_allclose(balance_loss(loads(logits)), np.mean(theirs), rtol=1e-5)
