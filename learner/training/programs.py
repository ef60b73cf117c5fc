"""Define a trainer's compiled programs: pure functions of parameters and a batch, which hold no array themselves.

A program can therefore be lowered from shapes and shardings alone, for devices that this machine does not have.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from learner.config import LearnerConfig
from learner.objective import build
from learner.objective.objective import Terms, of_sequences
from learner.optimisers.transformations import schedule_of
from learner.training.micro_batches import ForwardPasses, Gradients, Side, forward_of
from learner.training.optimiser import updates
from rollcast.policy.config import ModelConfig
from rollcast.policy.experts.balance import balance_loss, busiest_expert_share
from rollcast.policy.experts.layer import Load
from rollcast.policy.logprobs import Forward, TokenStatistics, completion_logprobs, score
from rollcast.policy.params import Params


class Factors(NamedTuple):
    """Inputs of the loss besides those of the forward pass; [rows, time] each."""

    loss_mask: Any  # bool
    advantages: Any  # f32
    weights: Any  # f32
    behaviour_logprobs: Any  # f32, not read where on_policy
    on_policy: Any  # bool, tokens whose behaviour is the policy that is being trained
    margins_max: Any  # f32, nats: a sequence with a margin above it among its on_policy tokens has weight 0
    proximal_logprobs: Any  # f32; None: those of the current policy
    reference_logprobs: Any  # f32; None: no KL penalty
    teacher_logprobs: Any = None  # f32; None: no teacher

    def select(self, rows: Any) -> Factors:
        """Return the factors of some rows."""
        return Factors(*(None if leaf is None else leaf[rows] for leaf in self))


class Programs:
    """Gradients, forward passes and optimiser steps of one model and configuration on one mesh.

    Args:
        forward: how a forward pass is computed; None: as the configuration and the mesh determine.
    """

    def __init__(
        self, model_config: ModelConfig, config: LearnerConfig, mesh: Mesh, forward: Forward | None = None
    ) -> None:
        self._model_config = model_config
        self._objective = build.objective(config.objective)
        own = config.objective.balance_coefficient
        self._balance_coefficient = model_config.balance_coefficient if own is None else own
        self._forward = forward or forward_of(config, mesh)
        micro_batch_tokens = config.optimiser.micro_batch_tokens
        self.gradients = Gradients(self._loss, mesh, micro_batch_tokens)
        """Gradients of the loss; a micro-batch is (inputs, Factors, each token's share of the metrics). The values that
        it keeps are the TokenStatistics of its forward pass."""
        self.statistics = ForwardPasses(self._score, mesh, micro_batch_tokens)
        """TokenStatistics under any parameters or snapshot."""
        schedule = schedule_of(config.optimiser, config.optimiser.learning_rate, config.objective.passes)
        self.learning_rate = jax.jit(schedule)
        """Number of optimiser steps taken -> learning rate of the next one."""
        self.updates = updates(config.optimiser, schedule, mesh)
        """Optimiser steps."""

    def _score(self, params: Params, arrays: dict[str, jax.Array]) -> TokenStatistics:
        return completion_logprobs(self._model_config, params, **arrays, forward=self._forward)

    def _loss(self, params: Params, part: Any, sequences_per_row: int) -> tuple[jax.Array, Side]:
        read, given, token_weights = part
        statistics, routed = score(self._model_config, params, **read, forward=self._forward)
        terms = _terms(statistics, read["segments"], given, sequences_per_row)
        value = -self._objective.value(terms)
        metrics = self._objective.metrics(terms, token_weights)
        if routed is not None:
            balance = _balance(routed.load, jnp.sum(token_weights))
            value += self._balance_coefficient * balance["balance_loss"]
            metrics |= balance
        metrics = jax.lax.stop_gradient({"loss": value} | metrics)
        return value, (metrics, jax.lax.stop_gradient(statistics))


def _balance(load: Load, share: jax.Array) -> dict[str, jax.Array]:
    """Return the figures of a micro-batch's experts, weighted by its share of the batch's trained tokens, f32 []."""
    return {"balance_loss": share * balance_loss(load), "busiest_expert_share": share * busiest_expert_share(load)}


def _terms(statistics: TokenStatistics, segments: jax.Array, given: Factors, sequences_per_row: int) -> Terms:
    own, margins = jax.lax.stop_gradient((statistics.logprobs, statistics.margins))
    first = jnp.arange(segments.shape[0], dtype=jnp.int32)[:, None] * sequences_per_row
    sequence = jnp.where(segments > 0, first + segments - 1, -1)
    sequences = segments.shape[0] * sequences_per_row
    beyond = of_sequences(given.on_policy & (margins > given.margins_max), sequence, sequences)
    return Terms(
        logprobs=statistics.logprobs,
        entropies=statistics.entropies,
        behaviour_logprobs=jnp.where(given.on_policy, own, given.behaviour_logprobs),
        advantages=given.advantages,
        loss_mask=given.loss_mask.astype(jnp.float32),
        weights=jnp.where(beyond > 0.0, 0.0, given.weights),
        sequence=sequence,
        sequences=sequences,
        proximal_logprobs=given.proximal_logprobs,
        reference_logprobs=given.reference_logprobs,
        teacher_logprobs=given.teacher_logprobs,
    )
