"""The objective, built from small factors so that another algorithm is another combination of them.

    J = sum over rows and tokens of  stop(aggregate * correction) * (gradient(stop(advantage)) + regulariser)

(RLAX, section on algorithms.) aggregate weighs tokens and is made on the host (learner/objective/aggregates.py),
correction is
an importance weight, gradient carries the policy gradient (it takes the advantage itself, because clipping depends on
its sign), regulariser adds terms such as KL or entropy; all are f32 [rows, time]. The factors are in
learner/objective/factors.py, named combinations in learner/objective/build.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp


class Terms(NamedTuple):
    """What the factors are computed from; arrays [rows, time], rows of several sequences allowed."""

    logprobs: jax.Array  # f32, of the policy being trained
    entropies: jax.Array  # f32, nats, of the policy being trained
    behaviour_logprobs: jax.Array  # f32, of the version that drew the token
    advantages: jax.Array  # f32
    loss_mask: jax.Array  # f32, 1 on trained tokens
    weights: jax.Array  # f32, aggregate of the whole batch, of which these rows may be a part
    sequence: jax.Array  # i32, number of the token's sequence among these rows, -1 off sequences
    sequences: int  # upper bound of those numbers
    proximal_logprobs: jax.Array | None = None  # f32, of the policy at the start of the step; None: the current one
    reference_logprobs: jax.Array | None = None  # f32, of the policy before RL

    def masked(self, values: jax.Array) -> jax.Array:
        """values, and 0 off the mask, so that padding cannot overflow an exponential."""
        return jnp.where(self.loss_mask > 0.0, values, 0.0)

    def sequence_mean(self, values: jax.Array) -> jax.Array:
        """Mean of values over the trained tokens of each token's sequence; 0 off sequences."""
        outside = self.sequences  # one more segment, for what belongs to no sequence
        owner = jnp.where(self.sequence < 0, outside, self.sequence).reshape(-1)

        def total(leaf: jax.Array) -> jax.Array:
            return jax.ops.segment_sum(leaf.reshape(-1), owner, outside + 1)

        means = total(self.masked(values)) / jnp.maximum(total(self.loss_mask), 1.0)
        spread = means[owner].reshape(values.shape)
        return jnp.where(self.sequence < 0, 0.0, spread)


Factor = Callable[[Terms], jax.Array]
LogRatio = Callable[[Terms], jax.Array]  # log of a ratio of probabilities, 0 off the mask


@dataclass(frozen=True, slots=True)
class Objective:
    """One choice of each factor that is computed on the device.

    gauges: name -> per-token value whose mean over trained tokens is reported.
    """

    correction: Factor
    gradient: Factor
    regulariser: Factor
    gauges: Mapping[str, Factor]

    def value(self, terms: Terms) -> jax.Array:
        """These rows' part of J, to be maximised; scalar f32. The parts of a batch add up to J."""
        weights = jax.lax.stop_gradient(terms.weights * self.correction(terms))
        return jnp.sum(weights * (self.gradient(terms) + self.regulariser(terms)))

    def metrics(self, terms: Terms, token_weights: jax.Array) -> dict[str, jax.Array]:
        """These rows' part of the gauges' means; scalars f32. token_weights: f32 [rows, time], sum 1 over the batch."""
        return {
            name: jnp.sum(token_weights * jax.lax.stop_gradient(gauge(terms))) for name, gauge in self.gauges.items()
        }


def current_to_behaviour(terms: Terms) -> jax.Array:
    """log(policy / behaviour)."""
    return terms.masked(terms.logprobs - terms.behaviour_logprobs)


def current_to_proximal(terms: Terms) -> jax.Array:
    """log(policy / policy at the start of the step): 0 with the policy's gradient where that is the policy itself."""
    return terms.masked(terms.logprobs - proximal(terms))


def proximal_to_behaviour(terms: Terms) -> jax.Array:
    """log(policy at the start of the step / behaviour)."""
    return terms.masked(proximal(terms) - terms.behaviour_logprobs)


def current_to_reference(terms: Terms) -> jax.Array:
    """log(policy / policy before RL).

    Raises:
        ValueError: the terms have no reference.
    """
    if terms.reference_logprobs is None:
        raise ValueError("the objective needs reference_logprobs")
    return terms.masked(terms.logprobs - terms.reference_logprobs)


def proximal(terms: Terms) -> jax.Array:
    """Log-probabilities at the start of the step, without gradient."""
    return jax.lax.stop_gradient(terms.logprobs if terms.proximal_logprobs is None else terms.proximal_logprobs)
