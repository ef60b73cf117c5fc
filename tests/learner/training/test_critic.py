from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from learner.config import LearnerConfig
from learner.training.critic import HEAD, Critic, Judgement, clipped_error, initial_critic
from learner.training.trainer import Trainer
from rollcast.policy.params import initial_params
from tests.learner.tiny import CONFIG, MODEL, copied_state, tiny_batch

REWARDS = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0]
PPO = CONFIG.model_dump() | {"objective": {"algorithm": "ppo", "critic": {"learning_rate": 3e-3}}}


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    """Return one trainer for all tests, so that it compiles once."""
    return Trainer(MODEL, LearnerConfig.model_validate(PPO))


@pytest.fixture(scope="module")
def beginning(trainer: Trainer) -> dict[str, Any]:
    return copied_state(trainer)


@pytest.fixture
def critic(trainer: Trainer, beginning: dict[str, Any]) -> Critic:
    trainer.restore(beginning)
    assert trainer.critic is not None
    return trainer.critic


def test_a_new_critic_knows_nothing_and_shares_no_memory_with_the_policy() -> None:
    policy = initial_params(MODEL, 1)
    params = initial_critic(policy)
    assert params.keys() - policy.keys() == {HEAD, "value.bias"}
    assert float(jnp.abs(params[HEAD]).max()) == 0.0
    assert params["embedding"] is not policy["embedding"]


def test_at_first_the_advantage_is_the_reward_compared_with_the_batch(critic: Critic) -> None:
    batch = tiny_batch(REWARDS)
    judged = critic.judge(batch)
    assert np.all(judged.values == 0.0)
    first = batch.loss_mask & (np.cumsum(batch.loss_mask, axis=1) == 1)
    np.testing.assert_allclose(judged.returns[first], 0.95**2 * np.array(REWARDS), atol=1e-6)
    assert judged.advantages[batch.loss_mask].mean() == pytest.approx(0.0, abs=1e-6)
    assert judged.advantages[batch.loss_mask].std() == pytest.approx(1.0, abs=1e-3)


def test_values_come_closer_to_the_returns(trainer: Trainer, critic: Critic) -> None:
    batch = tiny_batch(REWARDS)
    behaviour = trainer.behaviour(trainer.params(), batch).logprobs
    errors = [trainer.train_step(batch, behaviour)["value_error"] for _ in range(15)]
    assert errors[-1] < 0.5 * errors[0]


def test_a_critic_continues_from_a_checkpoint_with_the_same_bits(trainer: Trainer, critic: Critic) -> None:
    batch = tiny_batch(REWARDS)
    behaviour = trainer.behaviour(trainer.params(), batch).logprobs
    trainer.train_step(batch, behaviour)
    state = copied_state(trainer)
    assert any(name.startswith("critic/") for name in state)
    trainer.train_step(batch, behaviour)
    expected = copied_state(trainer)
    trainer.restore(state)
    trainer.train_step(batch, behaviour)
    assert all(np.array_equal(expected[name], leaf) for name, leaf in trainer.state().items())


def test_values_far_from_where_they_were_are_not_rewarded_for_it() -> None:
    judged = Judgement(np.zeros(3, np.float32), np.full(3, 1.0, np.float32), np.zeros(3, np.float32))
    found = clipped_error(jnp.array([0.1, 0.9, -0.5]), judged, 0.2)
    np.testing.assert_allclose(found, [0.5 * 0.9**2, 0.5 * 0.8**2, 0.5 * 1.5**2], rtol=1e-6)
