"""The critic of PPO (Schulman et al. 2017, section 5): a model of the policy's shape that tells the reward to come.

It has parameters and an optimiser of its own and starts from the policy's weights with a head of zeros.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from learner.advantages import generalised_advantages, whitened
from learner.objective_config import ObjectiveConfig
from learner.packing import PackedBatch
from learner.passes import FloatArray, added_gradients, forward, inputs
from rollcast.policy.attention import segment_attend
from rollcast.policy.config import ModelConfig
from rollcast.policy.params import Params, bind

HEAD = "value.kernel"
BIAS = "value.bias"


class Judgement(NamedTuple):
    """What the critic says of a batch; f32 [rows, time] each, 0 off the trained tokens."""

    advantages: FloatArray  # mean 0 and standard deviation 1
    returns: FloatArray  # what the values should have been
    values: FloatArray


class Critic:
    """Values, and how they are learned.

    Args:
        optimiser: makes the updates; its state is donated to every step, like the parameters.
        micro_batch_rows: rows whose activations are in memory at a time.
    """

    def __init__(
        self, model_config: ModelConfig, config: ObjectiveConfig, optimiser: Any, policy: Params, micro_batch_rows: int
    ) -> None:
        self._model_config = model_config
        self._config = config
        self._optimiser = optimiser
        self._micro_batch_rows = micro_batch_rows
        self._values = jax.jit(self._estimates)
        self._step = jax.jit(self._train, donate_argnums=0)
        params = initial_critic(policy)
        self.state: tuple[Params, Any] = (params, optimiser.init(params))
        """Parameters and optimiser state."""

    def judge(self, batch: PackedBatch) -> Judgement:
        """Advantages by GAE from the batch's rewards and the critic's present values."""
        mask, critic = batch.loss_mask, self._config.critic
        values = np.where(mask, forward(self._values, self.state[0], batch), np.float32(0.0))
        advantages = generalised_advantages(
            batch.rewards, values, mask, batch.segments, discount=critic.discount, gae_lambda=critic.gae_lambda
        )
        returns = np.where(mask, advantages + values, 0.0).astype(np.float32)
        normal = whitened(advantages, mask, self._config.advantage_epsilon)
        return Judgement(normal.astype(np.float32), returns, values)

    def train_step(self, batch: PackedBatch, judgement: Judgement) -> dict[str, jax.Array]:
        """One optimiser step towards the returns; gives value_loss and value_error, on the device."""
        values: dict[str, jax.Array]
        self.state, values = self._step(self.state, inputs(batch), batch.loss_mask, judgement)
        return values

    def _estimates(self, params: Params, arrays: dict[str, jax.Array]) -> jax.Array:
        return value_estimates(self._model_config, params, arrays["tokens"], arrays["positions"], arrays["segments"])

    def _train(
        self, state: tuple[Params, Any], arrays: dict[str, jax.Array], loss_mask: jax.Array, judgement: Judgement
    ) -> tuple[tuple[Params, Any], dict[str, jax.Array]]:
        params, optimiser_state = state
        mask = loss_mask.astype(jnp.float32)
        weights = mask / jnp.maximum(jnp.sum(mask), 1.0)

        def loss(candidate: Params, part: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
            read, told, share = part
            estimates = self._estimates(candidate, read)
            value = jnp.sum(share * clipped_error(estimates, told, self._config.critic.value_clip))
            error = jnp.sum(share * jnp.square(jax.lax.stop_gradient(estimates) - told.returns))
            return value, {"value_loss": value, "value_error": error}

        gradients, metrics = added_gradients(loss, params, (arrays, judgement, weights), self._micro_batch_rows)
        updates, optimiser_state = self._optimiser.update(gradients, optimiser_state, params)
        return (optax.apply_updates(params, updates), optimiser_state), metrics


def initial_critic(policy: Params) -> Params:
    """A copy of the policy's parameters (f32), and a head of zeros."""
    width = policy["embedding"].shape[1]
    head = {HEAD: jnp.zeros((width, 1), jnp.float32), BIAS: jnp.zeros((1,), jnp.float32)}
    return {name: jnp.array(value) for name, value in policy.items()} | head


def value_estimates(
    config: ModelConfig, params: Params, tokens: jax.Array, positions: jax.Array, segments: jax.Array
) -> jax.Array:
    """Value f32 [rows, time] before each token, from what comes before it; 0 for the first token of a row."""
    hidden = bind(config, params)(tokens, positions, segment_attend(segments)).astype(jnp.float32)
    after = (hidden @ params[HEAD] + params[BIAS])[..., 0]
    return jnp.pad(after[:, :-1], ((0, 0), (1, 0)))


def clipped_error(estimates: jax.Array, judgement: Judgement, clip: float) -> jax.Array:
    """Half the squared error of values, or of values within ``clip`` of what they were, whichever is larger.

    (The value loss of PPO's implementation, baselines/ppo2.)
    """
    near = judgement.values + jnp.clip(estimates - judgement.values, -clip, clip)
    errors = jnp.square(estimates - judgement.returns)
    return 0.5 * jnp.maximum(errors, jnp.square(near - judgement.returns))
