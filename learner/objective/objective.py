"""Compute the RL objective as a product of small factors: another algorithm is another combination of them.

    J = sum over rows and tokens of  stop(aggregate * correction) * (gradient(stop(advantage)) + regulariser)

(RLAX, section on algorithms.) All factors are f32 [rows, time]:

aggregate     weight of each token, computed on the host (learner/objective/aggregates.py)
correction    importance weight
gradient      term that carries the policy gradient; it takes the advantage itself, because clipping depends on its sign
regulariser   further terms, such as a KL penalty or an entropy bonus

learner/objective/factors.py defines the last three, learner/objective/build.py combines them as configured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp


class Terms(NamedTuple):
    """Inputs of the factors: arrays [rows, time], where a row may hold several sequences."""

    logprobs: jax.Array  # f32, log-probability under the policy being trained
    entropies: jax.Array  # f32, entropy of the policy being trained, nats
    behaviour_logprobs: jax.Array  # f32, log-probability under the version that generated the token
    advantages: jax.Array  # f32
    loss_mask: jax.Array  # f32, 1 on trained tokens
    weights: jax.Array  # f32, aggregate over the whole batch, of which these rows may be a part
    sequence: jax.Array  # i32, number of the token's sequence among these rows, -1 outside sequences
    sequences: int  # upper bound of those numbers
    proximal_logprobs: jax.Array | None = (
        None  # f32, log-probability under the policy at the start of the step; None: the current one
    )
    reference_logprobs: jax.Array | None = (
        None  # f32, log-probability under the policy before RL; None: no penalty needs it
    )
    teacher_logprobs: jax.Array | None = None  # f32, log-probability under the teacher; None: there is none

    def masked(self, values: jax.Array) -> jax.Array:
        """Return values with 0 outside the loss mask, so that padding cannot overflow an exponential."""
        return jnp.where(self.loss_mask > 0.0, values, 0.0)

    def sequence_mean(self, values: jax.Array) -> jax.Array:
        """Return, at each token, the mean of values over its sequence's trained tokens; 0 outside sequences."""
        total, tokens = (
            of_sequences(leaf, self.sequence, self.sequences) for leaf in (self.masked(values), self.loss_mask)
        )
        return total / jnp.maximum(tokens, 1.0)


def of_sequences(values: jax.Array, sequence: jax.Array, sequences: int) -> jax.Array:
    """Return, at each token, the sum f32 of values over its sequence; 0 outside sequences.

    sequence and sequences: see Terms.
    """
    owner = jnp.where(sequence < 0, sequences, sequence).reshape(-1)  # one more segment, for tokens of no sequence
    sums = jax.ops.segment_sum(values.reshape(-1).astype(jnp.float32), owner, sequences + 1)
    return jnp.where(sequence < 0, 0.0, sums[owner].reshape(values.shape))


Factor = Callable[[Terms], jax.Array]
LogRatio = Callable[[Terms], jax.Array]  # log of a ratio of probabilities, 0 off the mask


@dataclass(frozen=True, slots=True)
class Objective:
    """One choice of each factor that is computed on the device.

    Args:
        gauges: name -> per-token value whose mean over trained tokens is reported as a metric.
    """

    correction: Factor
    gradient: Factor
    regulariser: Factor
    gauges: Mapping[str, Factor]

    def value(self, terms: Terms) -> jax.Array:
        """Return these rows' share of J, which is maximised; scalar f32. The shares of a batch add up to J."""
        weights = jax.lax.stop_gradient(terms.weights * self.correction(terms))
        return jnp.sum(weights * (self.gradient(terms) + self.regulariser(terms)))

    def metrics(self, terms: Terms, token_weights: jax.Array) -> dict[str, jax.Array]:
        """Return these rows' share of each gauge's mean; scalars f32.

        Args:
            token_weights: f32 [rows, time], summing to 1 over the batch.
        """
        return {
            name: jnp.sum(token_weights * jax.lax.stop_gradient(gauge(terms))) for name, gauge in self.gauges.items()
        }


def current_to_behaviour(terms: Terms) -> jax.Array:
    """Return log(policy / behaviour) per token."""
    return terms.masked(terms.logprobs - terms.behaviour_logprobs)


def current_to_proximal(terms: Terms) -> jax.Array:
    """Return log(policy / policy at the start of the step) per token.

    In the first optimiser step both are the same policy: the value is 0, the gradient that of the policy.
    """
    return terms.masked(terms.logprobs - proximal(terms))


def proximal_to_behaviour(terms: Terms) -> jax.Array:
    """Return log(policy at the start of the step / behaviour) per token."""
    return terms.masked(proximal(terms) - terms.behaviour_logprobs)


def current_to_reference(terms: Terms) -> jax.Array:
    """Return log(policy / policy before RL) per token.

    Raises:
        ValueError: the terms have no reference.
    """
    if terms.reference_logprobs is None:
        raise ValueError("a KL penalty needs reference_logprobs, but the terms have none")
    return terms.masked(terms.logprobs - terms.reference_logprobs)


def current_to_teacher(terms: Terms) -> jax.Array:
    """Return log(policy / teacher) per token.

    Raises:
        ValueError: the terms have no teacher.
    """
    if terms.teacher_logprobs is None:
        raise ValueError("distillation needs teacher_logprobs, but the terms have none")
    return terms.masked(terms.logprobs - terms.teacher_logprobs)


def proximal(terms: Terms) -> jax.Array:
    """Return the log-probabilities at the start of the step, without gradient."""
    return jax.lax.stop_gradient(terms.logprobs if terms.proximal_logprobs is None else terms.proximal_logprobs)
