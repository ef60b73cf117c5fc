"""The optimiser step: behaviour log-probabilities, loss, Adam, snapshots. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from learner.config import LearnerConfig
from learner.objective import Terms, grpo, metrics, token_mean
from learner.packing import PackedBatch
from rollcast.policy.config import ModelConfig
from rollcast.policy.logprobs import completion_logprobs
from rollcast.policy.params import Params, initial_params
from rollcast.policy.snapshot import Snapshot, freeze
from rollcast.runtime.errors import CheckpointError

# Rows of one behaviour pass. A batch holds rows of several versions in varying shares: passes of one fixed size compile
# once and waste half a pass a version on average.
BEHAVIOUR_ROWS = 32

# What the loss reports; `train_step` adds grad_norm.
STEP_METRICS = ("loss", "ratio_mean", "clip_fraction", "kl_k3", "entropy")

FloatArray = np.ndarray[Any, np.dtype[np.float32]]


class _Factors(NamedTuple):
    """What the loss needs beyond the forward pass's inputs."""

    loss_mask: Any  # bool [rows, time]
    advantages: Any  # f32 [rows]
    behaviour_logprobs: Any  # f32 [rows, time]


class _Weighted(NamedTuple):
    """The loss mask, and weights made from the whole batch's mask; f32 [rows, time] each."""

    loss_mask: jax.Array
    weights: jax.Array
    token_weights: jax.Array


class Trainer:
    """Parameters and optimiser state, and what is done to them.

    The state is donated to every step: arrays from `params` are valid until the next `train_step`.
    """

    def __init__(self, model_config: ModelConfig, learner_config: LearnerConfig) -> None:
        self.model_config = model_config
        self._objective_config = learner_config.objective
        optimiser = learner_config.optimiser
        self._micro_batch_rows = optimiser.micro_batch_rows
        self._optimiser = optax.chain(
            optax.clip_by_global_norm(optimiser.max_grad_norm),
            optax.adam(optimiser.learning_rate, b1=optimiser.b1, b2=optimiser.b2),
        )
        self._step = jax.jit(self._train, donate_argnums=(0, 1))
        self._behaviour = jax.jit(self._logprobs)
        self.set_params(initial_params(model_config, learner_config.seed))

    def params(self) -> Params:
        """Current float32 parameters, on the device."""
        return self._params

    def set_params(self, params: Params) -> None:
        """Go on from these float32 parameters with a fresh optimiser."""
        self._params = params
        self._optimiser_state = self._optimiser.init(params)

    def train_step(self, batch: PackedBatch, behaviour_logprobs: FloatArray) -> dict[str, float]:
        """One optimiser step on a batch; behaviour_logprobs f32 [rows, time].

        Returns loss, grad_norm (before clipping), and the metrics of learner.objective.
        """
        factors = _Factors(batch.loss_mask, batch.advantages, behaviour_logprobs)
        self._params, self._optimiser_state, values = self._step(
            self._params, self._optimiser_state, _arrays(batch), factors
        )
        return {name: float(value) for name, value in jax.device_get(values).items()}

    def behaviour_logprobs(self, params: Params, packed: PackedBatch) -> FloatArray:
        """log p f32 [rows, time] of every token under ``params`` (a thawed version) at the rows' temperatures.

        Values outside the loss mask are those of prompt or padding and mean nothing to the loss.
        """
        rows = packed.tokens.shape[0]
        result = np.zeros(packed.tokens.shape, np.float32)
        for start in range(0, rows, BEHAVIOUR_ROWS):
            # The last pass repeats its last row to keep the shape.
            indices = np.minimum(np.arange(start, start + BEHAVIOUR_ROWS), rows - 1)
            part = np.asarray(self._behaviour(params, _arrays(packed.select(indices))))
            result[start : start + BEHAVIOUR_ROWS] = part[: rows - start]
        return result

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
        treedef = jax.tree.structure(self._state_tree())
        # Copies: device memory may not alias arrays that the caller still owns, because steps donate it.
        leaves = [jnp.array(state[name]) for name in expected]
        self._params, self._optimiser_state = jax.tree.unflatten(treedef, leaves)

    def _state_tree(self) -> tuple[Params, Any]:
        return self._params, self._optimiser_state

    def _logprobs(self, params: Params, arrays: dict[str, jax.Array]) -> jax.Array:
        return completion_logprobs(self.model_config, params, **arrays).logprobs

    def _train(
        self, params: Params, optimiser_state: Any, arrays: dict[str, jax.Array], factors: _Factors
    ) -> tuple[Params, Any, dict[str, jax.Array]]:
        objective = grpo(self._objective_config)
        mask = factors.loss_mask.astype(jnp.float32)
        weighted = _Weighted(mask, objective.aggregate(mask), token_mean(mask))
        whole = (arrays, factors.advantages, factors.behaviour_logprobs, weighted)
        rows = mask.shape[0]
        parts = rows // _largest_divisor(rows, self._micro_batch_rows)
        micro_batches = jax.tree.map(lambda leaf: leaf.reshape(parts, rows // parts, *leaf.shape[1:]), whole)

        def loss(candidate: Params, micro_batch: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
            inputs, advantages, behaviour_logprobs, (mask, weights, token_weights) = micro_batch
            statistics = completion_logprobs(self.model_config, candidate, **inputs)
            terms = Terms(statistics.logprobs, behaviour_logprobs, advantages[:, None], mask, weights)
            value = -objective.value(terms)
            return value, {"loss": value} | metrics(terms, token_weights, statistics.entropies, self._objective_config)

        def accumulate(total: Any, micro_batch: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, jax.grad(loss, has_aux=True)(params, micro_batch)), None

        nothing = {name: jnp.zeros((), jnp.float32) for name in STEP_METRICS}
        zeros = (jax.tree.map(jnp.zeros_like, params), nothing)
        (gradients, values), _ = jax.lax.scan(accumulate, zeros, micro_batches)
        updates, optimiser_state = self._optimiser.update(gradients, optimiser_state, params)
        return optax.apply_updates(params, updates), optimiser_state, values | {"grad_norm": optax.tree.norm(gradients)}


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


def _largest_divisor(rows: int, most: int) -> int:
    return next(size for size in range(min(rows, most), 0, -1) if rows % size == 0)


def _arrays(batch: PackedBatch) -> dict[str, Any]:
    return {
        "tokens": batch.tokens,
        "positions": batch.positions,
        "segments": batch.segments,
        "temperature": batch.temperature,
    }


def _named(tree: Any) -> dict[str, Any]:
    leaves, _ = jax.tree.flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}
