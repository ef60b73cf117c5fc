"""Measure how evenly a model's experts are used, and penalise unevenness."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from rollcast.policy.experts.layer import Load


def balance_loss(load: Load) -> jax.Array:
    """Return the load-balancing loss f32 [] (Fedus et al. 2021, "Switch Transformers", equations 4 to 6).

    For each layer it is the sum over experts of the share of tokens sent to the expert times its mean probability,
    times the number of experts; the mean over layers is returned. Even loads give experts_per_token, the least possible
    for probabilities that follow the loads. transformers adds up the shares of all layers before it multiplies, so that
    one layer's uneven loads can hide another's; for one layer both are the same. It is 0 if no token counts.
    """
    tokens = jnp.maximum(load.tokens, 1.0)[:, None]
    products = (load.counts / tokens) * (load.probabilities / tokens)
    return jnp.mean(jnp.sum(products, axis=1)) * load.counts.shape[1]


def busiest_expert_share(load: Load) -> jax.Array:
    """Return the share of a layer's routes that go to its busiest expert, f32 [], the mean over layers.

    It is 1 / experts if all are used evenly, and at most 1 / experts_per_token.
    """
    return jnp.mean(jnp.max(load.counts, axis=1) / jnp.maximum(jnp.sum(load.counts, axis=1), 1.0))
