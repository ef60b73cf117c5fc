"""Compute the factors of the objective on the device: correction, gradient and regulariser.

learner/objective/objective.py has the formula. Each factor is a small pure function of `Terms`, or a function that
builds one from its settings; results are f32 [rows, time].
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from learner.objective.objective import Factor, LogRatio, Terms, current_to_reference, current_to_teacher

Bound = Callable[[jax.Array], jax.Array]  # weights -> weights within bounds


# ---------------------------------------------------------------- correction: importance weights, without gradient


def no_correction(terms: Terms) -> jax.Array:
    """Return 1 everywhere."""
    return jnp.ones_like(terms.logprobs)


def importance(log_ratio: LogRatio, bound: Bound) -> Factor:
    """Weigh each token by its own ratio, bounded."""
    return lambda terms: bound(jnp.exp(log_ratio(terms)))


def sequence_importance(log_ratio: LogRatio, bound: Bound) -> Factor:
    """Weigh each token by the geometric mean of its sequence's ratios (GSPO, equation 7), bounded."""
    return lambda terms: bound(jnp.exp(terms.sequence_mean(log_ratio(terms))))


def truncated(high: float) -> Bound:
    """Bound weights by min(weight, high) (V-trace, section 4.1; truncated importance sampling)."""
    return lambda weights: jnp.minimum(weights, high)


def clipped(low: float, high: float) -> Bound:
    """Clip weights to [low, high] (CISPO, MiniMax-M1, equation 5)."""
    return lambda weights: jnp.clip(weights, low, high)


def two_sided(low: float, high: float) -> Bound:
    """Keep weights within [low, high] and set others to 0, which leaves the token out (IcePop, Ring-1T report)."""
    return lambda weights: jnp.where((weights >= low) & (weights <= high), weights, 0.0)


# ---------------------------------------------------------------- gradient: the policy gradient


def log_probability(terms: Terms) -> jax.Array:
    """Return A log p (REINFORCE, Williams 1992)."""
    return jax.lax.stop_gradient(terms.advantages) * terms.masked(terms.logprobs)


def clipped_surrogate(low: float, high: float, log_ratio: LogRatio) -> Factor:
    """Build min(r A, clip(r, 1 - low, 1 + high) A) (PPO, equation 7); high > low is clip-higher (DAPO, section 3.1)."""
    return lambda terms: _surrogate(jnp.exp(log_ratio(terms)), low, high, terms)


def sequence_clipped_surrogate(low: float, high: float, log_ratio: LogRatio) -> Factor:
    """Build the clipped surrogate of the geometric mean of a sequence's ratios (GSPO, equations 5 and 7)."""
    return lambda terms: _surrogate(jnp.exp(terms.sequence_mean(log_ratio(terms))), low, high, terms)


def _surrogate(ratio: jax.Array, low: float, high: float, terms: Terms) -> jax.Array:
    advantages = jax.lax.stop_gradient(terms.advantages)
    return jnp.minimum(ratio * advantages, jnp.clip(ratio, 1.0 - low, 1.0 + high) * advantages)


# ---------------------------------------------------------------- regularisers


def no_regulariser(terms: Terms) -> jax.Array:
    """Return 0 everywhere."""
    return jnp.zeros_like(terms.logprobs)


def k1(terms: Terms) -> jax.Array:
    """Return log(p / reference) with the gradient of its expectation, which is that of a penalty in the reward.

    The gradient of log p itself has mean 0 under p, and would penalise nothing.
    """
    return _in_the_reward(current_to_reference(terms), terms)


def teacher_divergence(terms: Terms) -> jax.Array:
    """Return log(p / teacher), the reverse KL divergence on the policy's own samples, with the gradient of k1.

    Agarwal et al. 2024 (2306.13649), section 3.2: generalised knowledge distillation with the student's samples alone
    and reverse KL. The estimate by the sampled token in the place of the sum over the vocabulary is that of Lu and
    Thinking Machines Lab 2025, "On-Policy Distillation": the advantage of a token is log(teacher / p), discount 0.
    """
    return _in_the_reward(current_to_teacher(terms), terms)


def _in_the_reward(log_ratio: jax.Array, terms: Terms) -> jax.Array:
    return jax.lax.stop_gradient(log_ratio) * (
        1.0 + terms.masked(terms.logprobs - jax.lax.stop_gradient(terms.logprobs))
    )


def k2(terms: Terms) -> jax.Array:
    """Return half the squared log-ratio (Schulman, "Approximating KL divergence"); its gradient is that of k1."""
    return 0.5 * jnp.square(current_to_reference(terms))


def k3(terms: Terms) -> jax.Array:
    """Return reference / p - 1 - log(reference / p) (Schulman, ibid.; GRPO's choice, DeepSeekMath, equation 4)."""
    log_ratio = -current_to_reference(terms)
    return jnp.exp(log_ratio) - 1.0 - log_ratio


def entropy(terms: Terms) -> jax.Array:
    """Return the entropy of the policy's distribution at each token, in nats."""
    return terms.masked(terms.entropies)


def weighted_sum(parts: list[tuple[float, Factor]]) -> Factor:
    """Build the sum of coefficient * factor."""

    def factor(terms: Terms) -> jax.Array:
        total = no_regulariser(terms)
        for coefficient, part in parts:
            total = total + coefficient * part(terms)
        return total

    return factor
