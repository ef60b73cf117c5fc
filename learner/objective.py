"""The objective, built from small factors so that another algorithm is another combination of them.

    J = sum over rows and tokens of  stop(aggregate * correction) * (gradient(stop(advantage)) + regulariser)

aggregate weighs tokens, correction is an importance weight, gradient carries the policy gradient (it takes the
advantage itself, because clipping depends on its sign), regulariser adds terms such as KL or entropy; all are f32
[rows, time]. `grpo` is GRPO (DeepSeekMath, section 4.1) with PPO's clipped surrogate (Schulman et al. 2017, equation
7), a wider upper clip and the token mean (DAPO, sections 3.1 and 3.3), and no KL term.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from learner.config import ObjectiveConfig


class Terms(NamedTuple):
    """What the factors are computed from."""

    logprobs: jax.Array  # f32 [rows, time], of the policy being trained
    behaviour_logprobs: jax.Array  # f32 [rows, time], of the version that drew the token
    advantages: jax.Array  # f32 [rows, 1]
    loss_mask: jax.Array  # f32 [rows, time], 1 on trained tokens
    weights: jax.Array  # f32 [rows, time], aggregate of the whole batch, of which these rows may be a part

    @property
    def log_ratio(self) -> jax.Array:
        """log(policy / behaviour), 0 off the mask so that padding cannot overflow the exponential."""
        return jnp.where(self.loss_mask > 0.0, self.logprobs - self.behaviour_logprobs, 0.0)


Aggregate = Callable[[jax.Array], jax.Array]  # loss mask of a whole batch -> weights
Factor = Callable[[Terms], jax.Array]


@dataclass(frozen=True, slots=True)
class Objective:
    """One choice of each factor."""

    aggregate: Aggregate
    correction: Factor
    gradient: Factor
    regulariser: Factor

    def value(self, terms: Terms) -> jax.Array:
        """These rows' part of J, to be maximised; scalar f32. The parts of a batch add up to J."""
        weights = jax.lax.stop_gradient(terms.weights * self.correction(terms))
        return jnp.sum(weights * (self.gradient(terms) + self.regulariser(terms)))


def token_mean(loss_mask: jax.Array) -> jax.Array:
    """Every trained token of the batch counts the same."""
    return loss_mask / jnp.maximum(jnp.sum(loss_mask), 1.0)


def ones(terms: Terms) -> jax.Array:
    """No correction."""
    return jnp.ones_like(terms.logprobs)


def zeros(terms: Terms) -> jax.Array:
    """No regulariser."""
    return jnp.zeros_like(terms.logprobs)


def clipped_surrogate(clip_low: float, clip_high: float) -> Factor:
    """PPO: min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A)."""

    def factor(terms: Terms) -> jax.Array:
        ratio = jnp.exp(terms.log_ratio)
        advantages = jax.lax.stop_gradient(terms.advantages)
        return jnp.minimum(ratio * advantages, jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high) * advantages)

    return factor


def grpo(config: ObjectiveConfig) -> Objective:
    """GRPO with PPO clipping and the token mean."""
    return Objective(token_mean, ones, clipped_surrogate(config.clip_low, config.clip_high), zeros)


def metrics(
    terms: Terms, token_weights: jax.Array, entropies: jax.Array, config: ObjectiveConfig
) -> dict[str, jax.Array]:
    """These rows' part of means over the batch's trained tokens; scalars f32. token_weights: `token_mean` of the batch.

    ratio_mean: policy / behaviour. clip_fraction: share of tokens whose ratio lies outside the clip range. kl_k3: the
    estimator (r - 1) - log r of KL between behaviour and policy (Schulman, "Approximating KL divergence"), a gauge of
    staleness. entropy: of the policy, nats.
    """
    log_ratio = jax.lax.stop_gradient(terms.log_ratio)
    ratio = jnp.exp(log_ratio)
    outside = (ratio < 1.0 - config.clip_low) | (ratio > 1.0 + config.clip_high)
    return {
        "ratio_mean": jnp.sum(token_weights * ratio),
        "clip_fraction": jnp.sum(token_weights * outside.astype(jnp.float32)),
        "kl_k3": jnp.sum(token_weights * (ratio - 1.0 - log_ratio)),
        "entropy": jnp.sum(token_weights * jax.lax.stop_gradient(entropies)),
    }


def group_normalised(
    rewards: np.ndarray[Any, Any], group_ids: np.ndarray[Any, Any], epsilon: float
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Advantages f32 [rows]: (reward - group mean) / (group standard deviation + epsilon), in float64 until the end."""
    _, members, sizes = np.unique(group_ids, return_inverse=True, return_counts=True)
    means = np.bincount(members, rewards) / sizes
    centred = rewards - means[members]
    deviations = np.sqrt(np.bincount(members, centred**2) / sizes)
    advantages: np.ndarray[Any, np.dtype[np.float32]] = (centred / (deviations[members] + epsilon)).astype(np.float32)
    return advantages
