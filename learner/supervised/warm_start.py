"""Run the short supervised warm start, which is reported apart from RL.

Stage 1 teaches the skill with correct answers until held-out accuracy passes a gate. Stage 2 teaches the task's flawed
answers (for sums: missing carries). The policy then has the skill but rarely shows it, which RL can repair within
minutes; on a half-learned skill RL stalls instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from jax.sharding import Mesh, NamedSharding

from learner.config import MeshConfig, WarmStartConfig
from learner.optimisers.moments import stored
from learner.training.mesh import make_mesh, placed_params
from learner.training.optimiser import Updates
from learner.training.packing import Example, PackedBatch, pack_examples
from learner.training.trainer import Trainer
from rollcast.policy.config import ModelConfig
from rollcast.policy.logprobs import completion_logprobs
from rollcast.policy.params import Params

FINAL_SHARE = 0.1  # share of the learning rate that is left at the last step
ADAM_SHARE = 0.1  # share of Muon's learning rate that Adam uses, for the scales of norms

Examples = Callable[[int, bool], Sequence[Example]]  # returns ``count`` fresh examples, ``flawed`` or correct
Accuracy = Callable[[Params], float]  # held-out exact match, 0 to 1
OnStep = Callable[[int], None]  # (steps done of this stage); may raise to stop


@dataclass(frozen=True, slots=True)
class WarmStartFigures:
    """The steps, result and duration of a warm start."""

    correct_steps: int
    flawed_steps: int
    correct_accuracy: float  # held-out accuracy after stage 1
    seconds: float


def warm_start(
    trainer: Trainer,
    config: WarmStartConfig,
    examples: Examples,
    accuracy: Accuracy,
    *,
    time_tokens: int,
    seed: int,
    on_step: OnStep = lambda _step: None,
) -> WarmStartFigures:
    """Run both stages and leave the result in the trainer, with a fresh RL optimiser.

    Args:
        time_tokens: length of a padded row in tokens.
        seed: seed of the examples' order.
        on_step: called before each step with the steps done of this stage; it may raise to stop.
    """
    started_s = time.perf_counter()
    random = np.random.default_rng(seed)
    correct = _pool(examples(config.examples, False), time_tokens)
    supervised = _Supervised(trainer.model_config, config.batch_size, _skill_optimiser(config), trainer.params())
    reached, correct_steps = 0.0, 0
    while correct_steps < config.steps_max and reached < config.accuracy_gate:
        steps = min(config.check_every_steps, config.steps_max - correct_steps)
        supervised.train(correct, steps, random, on_step)
        correct_steps += steps
        reached = accuracy(supervised.params)
    if config.flawed_steps:
        flawed = _pool(examples(config.examples, True), time_tokens)
        habit = optax.adam(config.flawed_learning_rate)
        supervised = _Supervised(trainer.model_config, config.batch_size, habit, supervised.params)
        supervised.train(flawed, config.flawed_steps, random, on_step)
    trainer.set_params(supervised.params)
    return WarmStartFigures(correct_steps, config.flawed_steps, reached, time.perf_counter() - started_s)


def _skill_optimiser(config: WarmStartConfig) -> optax.GradientTransformation:
    """Return Muon for matrices and Adam for the rest, with learning rates that fall linearly to a tenth.

    Muon (Jordan et al. 2024) needs less than half of Adam's steps for two-digit sums. It also trains the embedding,
    which was measured to be faster.
    """

    def falling(rate: float) -> Any:
        return optax.linear_schedule(rate, FINAL_SHARE * rate, max(config.steps_max, 1))

    return optax.contrib.muon(
        falling(config.learning_rate),
        adam_learning_rate=falling(ADAM_SHARE * config.learning_rate),
    )


class _Supervised:
    """A trainer of examples with cross-entropy on the answers."""

    def __init__(
        self, model_config: ModelConfig, batch_size: int, optimiser: optax.GradientTransformation, params: Params
    ) -> None:
        mesh = _mesh_of(params)
        # Copied, because each step donates them, and those of the trainer must stay.
        self.params = jax.tree.map(jnp.copy, placed_params(mesh, params))
        self._steps = 0
        self._model_config = model_config
        self._batch_size = batch_size
        transformation = stored(optimiser, "float32")
        self._updates = Updates(lambda _name: transformation, mesh)
        self._state = self._updates.init(self.params)
        self._gradient = jax.jit(jax.value_and_grad(self._loss))

    def train(self, pool: PackedBatch, steps: int, random: np.random.Generator, on_step: OnStep) -> None:
        """Take steps on batches sampled from the pool with replacement."""
        for _ in range(steps):
            on_step(self._steps)
            self._steps += 1
            batch = pool.select(random.integers(0, len(pool.tokens), self._batch_size))
            arrays = (batch.tokens, batch.positions, batch.segments, batch.temperature, batch.loss_mask)
            loss, gradients = self._gradient(self.params, arrays)
            self.params, self._state, _ = self._updates.apply(gradients, self._state, self.params, jnp.isfinite(loss))

    def _loss(self, params: Params, arrays: tuple[jax.Array, ...]) -> jax.Array:
        *inputs, loss_mask = arrays
        logprobs = completion_logprobs(self._model_config, params, *inputs).logprobs
        mask = loss_mask.astype(jnp.float32)
        return -jnp.sum(logprobs * mask) / jnp.sum(mask)


def _pool(examples: Sequence[Example], time_tokens: int) -> PackedBatch:
    """Return the examples in rows of their own, from which steps sample."""
    return pack_examples([[example] for example in examples], time=time_tokens)


def _mesh_of(params: Params) -> Mesh:
    """Return the mesh that parameters lie on; those of a leader of several processes are on its first device."""
    sharding = next(iter(params.values())).sharding
    return sharding.mesh if isinstance(sharding, NamedSharding) else make_mesh(MeshConfig(), list(sharding.device_set))
