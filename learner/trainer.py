"""The optimiser steps of a batch: log-probabilities of older policies, loss, Adam, snapshots. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from learner import presets
from learner.config import LearnerConfig
from learner.critic import Critic, Judgement
from learner.objective import Terms
from learner.packing import PackedBatch
from learner.passes import FloatArray, added_gradients, forward, inputs
from rollcast.policy.config import ModelConfig
from rollcast.policy.logprobs import completion_logprobs
from rollcast.policy.params import Params, initial_params
from rollcast.policy.snapshot import Snapshot, freeze
from rollcast.runtime.errors import CheckpointError


class _Factors(NamedTuple):
    """What the loss needs beyond the forward pass's inputs; [rows, time] each."""

    loss_mask: Any  # bool
    advantages: Any  # f32
    weights: Any  # f32
    behaviour_logprobs: Any  # f32
    proximal_logprobs: Any  # f32 or None: the current policy's
    reference_logprobs: Any  # f32 or None: no penalty

    def select(self, rows: Any) -> _Factors:
        return _Factors(*(None if leaf is None else leaf[rows] for leaf in self))


class Trainer:
    """Parameters and optimiser state, and what is done to them.

    The state is donated to every step: arrays from `params` are valid until the next `train_step`.
    """

    def __init__(self, model_config: ModelConfig, learner_config: LearnerConfig) -> None:
        self.model_config = model_config
        self._config = learner_config
        self._objective = presets.objective(learner_config.objective)
        self._micro_batch_rows = learner_config.optimiser.micro_batch_rows
        self._optimiser = _adam(learner_config, learner_config.optimiser.learning_rate)
        self._step = jax.jit(self._train, donate_argnums=(0, 1), static_argnums=4)
        self._logprobs = jax.jit(self._score)
        self.set_params(initial_params(model_config, learner_config.seed))

    def params(self) -> Params:
        """Current float32 parameters, on the device."""
        return self._params

    def set_params(self, params: Params) -> None:
        """Go on from these float32 parameters with a fresh optimiser; reference and critic start from them too."""
        objective = self._config.objective
        self._params = params
        self._optimiser_state = self._optimiser.init(params)
        self._reference = None if objective.kl == "none" else {name: jnp.array(leaf) for name, leaf in params.items()}
        self._critic = None
        if objective.advantage == "critic":
            optimiser = _adam(self._config, objective.critic.learning_rate)
            self._critic = Critic(self.model_config, objective, optimiser, params, self._micro_batch_rows)

    def train_step(self, batch: PackedBatch, behaviour_logprobs: FloatArray) -> dict[str, float]:
        """The optimiser steps on a batch; behaviour_logprobs f32 [rows, time].

        Returns means over these steps: loss, grad_norm (before clipping), the gauges of learner.presets, and with a
        critic value_loss and value_error (squared, of its estimates).
        """
        judgement = None if self._critic is None else self._critic.judge(batch)
        factors = self._factors(batch, behaviour_logprobs, judgement)
        passes, mini_batches = self._config.objective.passes, self._config.objective.mini_batches
        rows = batch.tokens.shape[0]
        reports = []
        for number in range(passes):
            # Every mini_batches-th row: a group's completions fall into different parts.
            part = np.arange(number % mini_batches, rows, mini_batches)
            chosen = batch.select(part)
            self._params, self._optimiser_state, values = self._step(
                self._params, self._optimiser_state, inputs(chosen), factors.select(part), batch.sequences_per_row
            )
            if self._critic is not None and judgement is not None:
                values |= self._critic.train_step(chosen, Judgement(*(leaf[part] for leaf in judgement)))
            reports.append(values)
        fetched = jax.device_get(reports)
        return {name: float(np.mean([report[name] for report in fetched])) for name in fetched[0]}

    def behaviour_logprobs(self, params: Params, packed: PackedBatch) -> FloatArray:
        """log p f32 [rows, time] of every token under ``params`` (a thawed version) at the rows' temperatures.

        Values outside the loss mask are those of prompt or padding and mean nothing to the loss.
        """
        return forward(self._logprobs, params, packed)

    def snapshot(self) -> Snapshot:
        """The current parameters as the rollout reads them."""
        return freeze(self.model_config, self._params)

    def state(self) -> dict[str, np.ndarray[Any, Any]]:
        """Everything a checkpoint needs, by name: host copies, because the next step reuses the originals' memory."""
        return {name: np.array(leaf) for name, leaf in _named(self._state_tree()).items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`.

        Raises:
            CheckpointError: names or shapes are not those of this model and optimiser.
        """
        expected = _named(self._state_tree())
        same = expected.keys() == state.keys() and all(
            leaf.shape == state[name].shape and leaf.dtype == state[name].dtype for name, leaf in expected.items()
        )
        if not same:
            raise CheckpointError(
                "the checkpoint is of another model or optimiser",
                cause="its tensors differ in name, shape or dtype",
                fix="resume with the configuration that the run was started with",
            )
        # Copies: device memory may not alias arrays that the caller still owns, because steps donate it.
        leaves = [jnp.array(state[name]) for name in expected]
        tree = jax.tree.unflatten(jax.tree.structure(self._state_tree()), leaves)
        self._params, self._optimiser_state = tree["parameters"], tree["optimiser"]
        self._reference = tree.get("reference")
        if self._critic is not None:
            self._critic.state = tree["critic"]

    def _state_tree(self) -> dict[str, Any]:
        tree: dict[str, Any] = {"parameters": self._params, "optimiser": self._optimiser_state}
        if self._reference is not None:
            tree["reference"] = self._reference
        if self._critic is not None:
            tree["critic"] = self._critic.state
        return tree

    def _factors(self, batch: PackedBatch, behaviour: FloatArray, judgement: Judgement | None) -> _Factors:
        objective = self._config.objective
        several = objective.proximal and objective.passes > 1
        return _Factors(
            loss_mask=batch.loss_mask,
            advantages=batch.advantages if judgement is None else judgement.advantages,
            # A part's weights add up to its share of the batch; each step is to be as long as one on the whole.
            weights=batch.weights * np.float32(objective.mini_batches),
            behaviour_logprobs=behaviour,
            proximal_logprobs=self.behaviour_logprobs(self._params, batch) if several else None,
            reference_logprobs=None if self._reference is None else self.behaviour_logprobs(self._reference, batch),
        )

    def _score(self, params: Params, arrays: dict[str, jax.Array]) -> jax.Array:
        return completion_logprobs(self.model_config, params, **arrays).logprobs

    def _train(
        self,
        params: Params,
        optimiser_state: Any,
        arrays: dict[str, jax.Array],
        factors: _Factors,
        sequences_per_row: int,
    ) -> tuple[Params, Any, dict[str, jax.Array]]:
        mask = factors.loss_mask.astype(jnp.float32)
        shares = mask / jnp.maximum(jnp.sum(mask), 1.0)

        def loss(candidate: Params, part: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
            read, given, token_weights = part
            terms = self._terms(candidate, read, given, sequences_per_row)
            value = -self._objective.value(terms)
            return value, {"loss": value} | self._objective.metrics(terms, token_weights)

        gradients, values = added_gradients(loss, params, (arrays, factors, shares), self._micro_batch_rows)
        updates, optimiser_state = self._optimiser.update(gradients, optimiser_state, params)
        return optax.apply_updates(params, updates), optimiser_state, values | {"grad_norm": optax.tree.norm(gradients)}

    def _terms(self, params: Params, read: dict[str, jax.Array], given: _Factors, sequences_per_row: int) -> Terms:
        statistics = completion_logprobs(self.model_config, params, **read)
        segments = read["segments"]
        first = jnp.arange(segments.shape[0], dtype=jnp.int32)[:, None] * sequences_per_row
        return Terms(
            logprobs=statistics.logprobs,
            entropies=statistics.entropies,
            behaviour_logprobs=given.behaviour_logprobs,
            advantages=given.advantages,
            loss_mask=given.loss_mask.astype(jnp.float32),
            weights=given.weights,
            sequence=jnp.where(segments > 0, first + segments - 1, -1),
            sequences=segments.shape[0] * sequences_per_row,
            proximal_logprobs=given.proximal_logprobs,
            reference_logprobs=given.reference_logprobs,
        )


def _adam(config: LearnerConfig, learning_rate: float) -> Any:
    optimiser = config.optimiser
    return optax.chain(
        optax.clip_by_global_norm(optimiser.max_grad_norm),
        optax.adam(learning_rate, b1=optimiser.b1, b2=optimiser.b2),
    )


def behaviour_by_version(
    trainer: Trainer, packed: PackedBatch, params_of_version: Callable[[int], Params]
) -> FloatArray:
    """Behaviour log-probabilities f32 [rows, time], each token under the version that made it; 0 off the loss mask.

    params_of_version thaws one retained version; versions are asked for one after the other, oldest first.
    """
    result = np.zeros(packed.tokens.shape, np.float32)
    for version in packed.versions():
        made = (packed.token_versions == version) & packed.loss_mask
        rows = np.flatnonzero(made.any(axis=1))
        logprobs = trainer.behaviour_logprobs(params_of_version(version), packed.select(rows))
        result[rows] = np.where(made[rows], logprobs, result[rows])
    return result


def _named(tree: Any) -> dict[str, Any]:
    leaves, _ = jax.tree.flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}
