"""Log-probabilities of given tokens under the policy: one definition for learner, audits and tests."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rollcast.policy.attention import segment_attend
from rollcast.policy.config import ModelConfig
from rollcast.policy.params import Params, bind


class TokenStatistics(NamedTuple):
    """Per token, f32 [rows, time]; both are 0 for the first token, which nothing predicts."""

    logprobs: jax.Array  # log p(token | tokens before it) at the row's temperature
    entropies: jax.Array  # of the distribution that the token was drawn from, nats


def token_statistics(logits: jax.Array, tokens: jax.Array, temperature: jax.Array) -> TokenStatistics:
    """Statistics of tokens i32 [rows, time] from logits f32 [rows, time, vocabulary], temperature f32 [rows]."""
    distribution = jax.nn.log_softmax(logits[:, :-1] / temperature[:, None, None], axis=-1)
    picked = jnp.take_along_axis(distribution, tokens[:, 1:, None], axis=-1)[..., 0]
    entropies = -jnp.sum(jnp.exp(distribution) * distribution, axis=-1)
    first = ((0, 0), (1, 0))
    return TokenStatistics(jnp.pad(picked, first), jnp.pad(entropies, first))


def completion_logprobs(
    config: ModelConfig,
    params: Params,
    tokens: jax.Array,
    positions: jax.Array,
    segments: jax.Array,
    temperature: jax.Array,
) -> TokenStatistics:
    """Run the training forward on tokens [rows, time] and score every token; segments: see segment_attend."""
    model = bind(config, params)
    return token_statistics(model.logits(model(tokens, positions, segment_attend(segments))), tokens, temperature)
