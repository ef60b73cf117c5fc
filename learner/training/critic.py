"""Train the critic of PPO (Schulman et al. 2017, section 5): a model of the policy's shape that predicts the reward.

It has its own parameters and optimiser, and starts from the policy's weights with a head of zeros.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from learner.config import LearnerConfig
from learner.objective.advantages import generalised_advantages, whitened
from learner.optimisers.transformations import schedule_of
from learner.training.mesh import placed_params
from learner.training.micro_batches import FloatArray, ForwardPasses, Gradients, Side, forward_of, inputs
from learner.training.optimiser import updates
from learner.training.packing import PackedBatch
from rollcast.policy.config import ModelConfig
from rollcast.policy.logprobs import Forward
from rollcast.policy.params import Params, bind
from rollcast.policy.stacking import stacked

HEAD = "value.kernel"
BIAS = "value.bias"


class Judgement(NamedTuple):
    """The critic's estimates for a batch, each f32 [rows, time] and 0 for tokens that are not trained."""

    advantages: FloatArray  # normalised to mean 0 and standard deviation 1
    returns: FloatArray  # the targets of the values
    values: FloatArray  # the estimates before the update


class Critic:
    """A critic with its optimiser: it estimates values and learns them.

    Args:
        model_config: the architecture, which is the policy's.
        config: the learner's configuration; the critic has its own learning rate and the policy's other settings.
        mesh: the mesh of devices that parameters and rows are divided among.
        policy: the policy's parameters, from which the critic starts.
    """

    def __init__(self, model_config: ModelConfig, config: LearnerConfig, mesh: Mesh, policy: Params) -> None:
        self._model_config = model_config
        self._config = config.objective
        self._forward = forward_of(config, mesh)
        micro_batch_tokens = config.optimiser.micro_batch_tokens
        schedule = schedule_of(config.optimiser, config.objective.critic.learning_rate, config.objective.passes)
        self._updates = updates(config.optimiser, schedule, mesh)
        self._values = ForwardPasses(self._estimates, mesh, micro_batch_tokens)
        self._gradients = Gradients(self._loss, mesh, micro_batch_tokens)
        params = placed_params(mesh, initial_critic(policy))
        self.state: tuple[Params, Any] = (params, self._updates.init(params))
        """The critic's parameters and optimiser state."""

    def judge(self, batch: PackedBatch) -> Judgement:
        """Estimate advantages by GAE from the batch's rewards and the critic's present values."""
        mask, critic = batch.loss_mask, self._config.critic
        values = np.where(mask, self._values(self.state[0], batch), np.float32(0.0))
        advantages = generalised_advantages(
            batch.rewards, values, mask, batch.segments, discount=critic.discount, gae_lambda=critic.gae_lambda
        )
        returns = np.where(mask, advantages + values, 0.0).astype(np.float32)
        normal = whitened(advantages, mask, self._config.advantage_epsilon)
        return Judgement(normal.astype(np.float32), returns, values)

    def train_step(self, batch: PackedBatch, judgement: Judgement) -> dict[str, jax.Array]:
        """Take one optimiser step towards the returns; a step whose loss or gradient norm is not finite is skipped.

        Returns value_loss, value_error and critic_skipped (bool), on the device.
        """
        params, optimiser_state = self.state
        shares = (batch.loss_mask / max(batch.loss_mask.sum(), 1)).astype(np.float32)
        gradients, values, _ = self._gradients.of(params, (inputs(batch), judgement, shares), batch.sequences_per_row)
        sound = jnp.isfinite(values["value_loss"])
        params, optimiser_state, step = self._updates.apply(gradients, optimiser_state, params, sound)
        self.state = (params, optimiser_state)
        return values | {"critic_skipped": ~step.taken}

    def _estimates(self, params: Params, arrays: dict[str, jax.Array]) -> jax.Array:
        read = (arrays["tokens"], arrays["positions"], arrays["segments"])
        return value_estimates(self._model_config, params, *read, self._forward)

    def _loss(self, params: Params, part: Any, _sequences_per_row: int) -> tuple[jax.Array, Side]:
        read, judgement, share = part
        estimates = self._estimates(params, read)
        value = jnp.sum(share * clipped_error(estimates, judgement, self._config.critic.value_clip))
        error = jnp.sum(share * jnp.square(jax.lax.stop_gradient(estimates) - judgement.returns))
        return value, ({"value_loss": value, "value_error": error}, ())


def initial_critic(policy: Params) -> Params:
    """Return a copy of the policy's parameters (f32) with a head of zeros."""
    width = policy["embedding"].shape[1]
    head = {HEAD: jnp.zeros((width, 1), jnp.float32), BIAS: jnp.zeros((1,), jnp.float32)}
    return {name: jnp.array(value) for name, value in policy.items()} | head


def value_estimates(
    config: ModelConfig,
    params: Params,
    tokens: jax.Array,
    positions: jax.Array,
    segments: jax.Array,
    forward: Forward,
) -> jax.Array:
    """Return the value f32 [rows, time] before each token, from the tokens before it; 0 for the first of a row."""
    model = bind(config, stacked(params))
    around, routing = forward.around, forward.routing(segments, None)
    hidden = model(tokens, positions, forward.attend(segments), around, forward.look_up, routing)
    after = (hidden.states.astype(jnp.float32) @ params[HEAD] + params[BIAS])[..., 0]
    return jnp.pad(after[:, :-1], ((0, 0), (1, 0)))


def clipped_error(estimates: jax.Array, judgement: Judgement, clip: float) -> jax.Array:
    """Return half the squared error of values, or of values kept within ``clip`` of the old ones, if that is larger.

    It is the value loss of PPO's implementation in OpenAI Baselines (baselines/ppo2).
    """
    near = judgement.values + jnp.clip(estimates - judgement.values, -clip, clip)
    errors = jnp.square(estimates - judgement.returns)
    return 0.5 * jnp.maximum(errors, jnp.square(near - judgement.returns))
