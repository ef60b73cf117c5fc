from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner.checkpoints.arrays import SavedArrays
from learner.checkpoints.fingerprints import ArrayRecord
from learner.config import LearnerConfig, OptimiserConfig
from learner.objective.config import ObjectiveConfig
from learner.training.mesh import make_mesh
from learner.training.micro_batches import FORWARD_ROWS, inputs
from learner.training.packing import pack
from learner.training.programs import Factors, Programs
from learner.training.trainer import Trainer, behaviour_by_version
from rollcast.policy.logprobs import completion_logprobs
from rollcast.policy.params import Params, initial_params
from rollcast.policy.snapshot import freeze, thaw
from rollcast.policy.stacking import stacked
from rollcast.runtime.errors import CheckpointError, NotFinite
from tests.compiling import OPTIMISED
from tests.learner.tiny import CONFIG, MODEL, TIME, copied_state, tiny_batch, tiny_row, tiny_trainer

REWARDS = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0]


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    """Return one trainer for all tests, so that it compiles once; tests that need a fresh state restore it."""
    return tiny_trainer()


@pytest.fixture
def fresh(trainer: Trainer) -> Trainer:
    trainer.set_params(initial_params(MODEL, 1))
    return trainer


def copied(params: Params) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    return {name: np.array(value) for name, value in params.items()}


def test_on_policy_ratios_are_one_and_the_loss_is_minus_the_mean_advantage(fresh: Trainer) -> None:
    batch = tiny_batch(REWARDS)
    values = fresh.train_step(batch, fresh.behaviour(fresh.params(), batch).logprobs)
    gauges = {"ratio_mean", "clip_fraction", "kl_k3", "entropy"}
    assert set(values) == {"loss", "grad_norm", "learning_rate", "updates_skipped"} | gauges
    assert values["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert values["clip_fraction"] == 0.0
    assert values["kl_k3"] == pytest.approx(0.0, abs=1e-5)
    assert values["loss"] == pytest.approx(-batch.advantages[batch.loss_mask].mean(), abs=1e-5)
    assert 0.0 < values["entropy"] < np.log(MODEL.vocabulary_size)
    assert values["grad_norm"] > 0.0


def test_a_small_step_lowers_the_balance_loss_by_as_much_as_its_gradient_says() -> None:
    config = CONFIG.model_copy(update={"remat": "blocks", "objective": ObjectiveConfig(balance_coefficient=1.0)})
    model = MODEL.model_copy(update={"experts": 4, "experts_per_token": 1, "expert_width": 8})
    programs = Programs(model, config, make_mesh(config.mesh))
    batch = tiny_batch([1.0] * 8)  # equal rewards: nothing else has a gradient
    nothing = np.zeros(batch.tokens.shape, np.float32)
    on_policy = np.ones(batch.tokens.shape, bool)
    factors = Factors(
        batch.loss_mask, batch.advantages, batch.weights, nothing, on_policy, nothing + np.inf, None, None
    )
    whole = (inputs(batch), factors, (batch.loss_mask / batch.loss_mask.sum()).astype(np.float32))
    params = stacked(initial_params(model, 1))
    gradients, before, _ = programs.gradients.of(params, whole, 1)
    assert before["loss"] == pytest.approx(float(before["balance_loss"]), abs=1e-5)
    assert before["balance_loss"] > 1.0
    assert 0.25 < before["busiest_expert_share"] <= 1.0
    step = 1e-4  # so small that no token is sent elsewhere
    moved = {name: value - step * gradients[name] for name, value in params.items()}
    _, after, _ = programs.gradients.of(moved, whole, 1)
    expected = step * sum(float(jnp.sum(value**2)) for value in gradients.values())
    assert float(before["balance_loss"] - after["balance_loss"]) == pytest.approx(expected, rel=0.1)


def test_rewarded_completions_become_likelier_and_others_less_likely(fresh: Trainer) -> None:
    batch = tiny_batch(REWARDS)
    before = fresh.behaviour(fresh.params(), batch).logprobs
    for _ in range(5):
        fresh.train_step(batch, before)
    change = np.where(batch.loss_mask, fresh.behaviour(fresh.params(), batch).logprobs - before, 0.0).sum(1)
    advantages = batch.advantages.sum(1)
    assert np.all(change[advantages > 0] > 0.0)
    assert change[advantages < 0].mean() < 0.0


def test_equal_rewards_change_nothing(fresh: Trainer) -> None:
    before = copied(fresh.params())
    batch = tiny_batch([1.0] * 8)
    values = fresh.train_step(batch, fresh.behaviour(fresh.params(), batch).logprobs)
    assert values["grad_norm"] == 0.0
    assert all(np.array_equal(before[name], value) for name, value in fresh.params().items())


def test_micro_batches_give_the_gradient_of_the_whole(fresh: Trainer) -> None:
    batch = tiny_batch(REWARDS)
    behaviour = np.where(batch.loss_mask, -2.0, 0.0).astype(np.float32)
    whole = tiny_trainer(LearnerConfig(seed=1, optimiser=OptimiserConfig(learning_rate=3e-3, micro_batch_tokens=48)))
    assert fresh.train_step(batch, behaviour) == pytest.approx(whole.train_step(batch, behaviour), abs=1e-5)
    for name, value in fresh.params().items():
        np.testing.assert_allclose(value, whole.params()[name], atol=1e-4)


def test_a_restored_state_continues_with_the_same_bits(fresh: Trainer) -> None:
    batch = tiny_batch(REWARDS)
    behaviour = fresh.behaviour(fresh.params(), batch).logprobs
    fresh.train_step(batch, behaviour)
    state = copied_state(fresh)
    fresh.train_step(batch, behaviour)
    expected = copied(fresh.params())
    fresh.restore(state)
    fresh.train_step(batch, behaviour)
    assert all(np.array_equal(expected[name], value) for name, value in fresh.params().items())


def test_a_loss_that_is_not_finite_changes_no_bit_and_is_counted(fresh: Trainer) -> None:
    batch = tiny_batch(REWARDS)
    behaviour = fresh.behaviour(fresh.params(), batch).logprobs
    fresh.train_step(batch, behaviour)
    before = copied_state(fresh)
    spoilt = behaviour.copy()
    spoilt[tuple(np.argwhere(batch.loss_mask & (batch.advantages < 0.0))[0])] = -np.inf  # a ratio of infinity
    values = fresh.train_step(batch, spoilt)
    assert values["updates_skipped"] == 1.0
    assert not np.isfinite(values["loss"])
    after = copied_state(fresh)
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert fresh.train_step(batch, behaviour)["updates_skipped"] == 0.0


def test_figures_are_of_the_updates_that_were_not_skipped() -> None:
    config = LearnerConfig.model_validate(CONFIG.model_dump() | {"objective": {"mini_batches": 2}})
    trainer, batch = tiny_trainer(config), tiny_batch(REWARDS)
    behaviour = trainer.behaviour(trainer.params(), batch).logprobs.copy()
    behaviour[1][batch.loss_mask[1]] = -np.inf
    before = copied(trainer.params())
    values = trainer.train_step(batch, behaviour)
    assert values["updates_skipped"] == 1.0
    assert all(map(np.isfinite, values.values()))
    assert not np.array_equal(before["embedding"], trainer.params()["embedding"])


def test_parameters_that_are_not_finite_are_refused(fresh: Trainer) -> None:
    params = initial_params(MODEL, 1)
    params["embedding"] = params["embedding"].at[1, 2].set(jnp.nan)
    with pytest.raises(NotFinite, match="parameters are not finite"):
        fresh.set_params(params)


def test_a_step_that_overflows_the_parameters_is_an_error(fresh: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = tiny_batch(REWARDS)
    behaviour = fresh.behaviour(fresh.params(), batch).logprobs
    apply = fresh._programs.updates.apply

    def overflowing(*arguments: Any) -> tuple[Params, Any, jax.Array]:
        params, state, norm = apply(*arguments)
        return {name: leaf * jnp.float32(3e38) ** 2 for name, leaf in params.items()}, state, norm

    monkeypatch.setattr(fresh._programs.updates, "apply", overflowing)
    with pytest.raises(NotFinite, match="parameters are not finite"):
        fresh.train_step(batch, behaviour)


def test_a_restored_state_continues_the_schedule_of_learning_rates() -> None:
    falling = {"learning_rate": 1e-3, "schedule": "linear", "warmup_steps": 1, "decay_steps": 4, "end_share": 0.1}
    optimiser = OptimiserConfig.model_validate(CONFIG.optimiser.model_dump() | falling)
    trainer = tiny_trainer(CONFIG.model_copy(update={"optimiser": optimiser}))
    batch = tiny_batch(REWARDS)
    behaviour = trainer.behaviour(trainer.params(), batch).logprobs
    rates, states = [], []
    for _ in range(4):
        states.append(copied_state(trainer))
        rates.append(trainer.train_step(batch, behaviour)["learning_rate"])
    assert rates == pytest.approx([5e-4, 1e-3, 7e-4, 4e-4])
    trainer.restore(states[2])
    assert trainer.train_step(batch, behaviour)["learning_rate"] == rates[2]


def test_a_foreign_checkpoint_is_refused_before_the_state_is_released(fresh: Trainer) -> None:
    like = {name: ArrayRecord(str(leaf.dtype), leaf.shape, "") for name, leaf in fresh.state().items()}
    name = "parameters/embedding"
    for records in (
        like | {name: replace(like[name], shape=(1, 2))},
        like | {name: replace(like[name], dtype="bfloat16")},
        {key: record for key, record in like.items() if key != name},
    ):
        with pytest.raises(CheckpointError, match="another model"):
            fresh.load(SavedArrays("nowhere", records))
    assert fresh.params()["embedding"].shape == like[name].shape


@pytest.mark.parametrize("optimiser", [{}, {"state_dtype": "int8"}, {"offload": True}])
def test_a_saved_state_is_that_of_its_step_and_continues_with_the_same_bits(
    optimiser: dict[str, Any], tmp_path: Path
) -> None:
    config = LearnerConfig.model_validate(
        CONFIG.model_dump() | {"optimiser": CONFIG.optimiser.model_dump() | optimiser}
    )
    trainer, batch = tiny_trainer(config), tiny_batch(REWARDS)
    behaviour = trainer.behaviour(trainer.params(), batch).logprobs
    trainer.train_step(batch, behaviour)
    write = trainer.begin_save(str(tmp_path / "arrays"))
    trainer.train_step(batch, behaviour)
    expected = copied_state(trainer)
    trainer.load(write.finish())
    trainer.train_step(batch, behaviour)
    found = copied_state(trainer)
    assert all(np.array_equal(expected[name], found[name]) for name in expected)


def test_behaviour_does_not_depend_on_how_rows_are_grouped(fresh: Trainer) -> None:
    rows = FORWARD_ROWS + 8
    batch = tiny_batch([0.0] * rows)
    together = fresh.behaviour(fresh.params(), batch).logprobs
    part = fresh.behaviour(fresh.params(), batch.select(np.arange(rows - 3, rows))).logprobs
    np.testing.assert_allclose(part, together[-3:], atol=2e-6)
    assert together.dtype == np.float32


def test_each_token_is_scored_under_the_version_that_made_it(fresh: Trainer) -> None:
    versions = {7: initial_params(MODEL, 7), 9: initial_params(MODEL, 9)}
    rows = [tiny_row(0, (4, 5, 1), 0.0, 7, 9), tiny_row(1, (4, 5, 1), 1.0, 9)]
    batch = pack(rows, time=TIME, objective=ObjectiveConfig(), completion_tokens_max=4)
    found = behaviour_by_version(fresh, batch, versions.__getitem__).logprobs
    scores = {version: fresh.behaviour(params, batch).logprobs for version, params in versions.items()}
    np.testing.assert_allclose(found[0, 2:5], [scores[7][0, 2], *scores[9][0, 3:5]], atol=2e-6)
    np.testing.assert_allclose(found[1, 2:5], scores[9][1, 2:5], atol=2e-6)
    assert np.all(found[~batch.loss_mask] == 0.0)


def test_rows_that_hold_several_versions_are_scored_token_by_token(fresh: Trainer) -> None:
    versions = {version: initial_params(MODEL, version) for version in (7, 8, 9)}
    rows = [tiny_row(index, (4, 5, 6, 1)[: 2 + index % 3], 0.0, 7 + index % 3, 9) for index in range(9)]
    batch = pack(rows, time=3 * TIME, objective=ObjectiveConfig(), completion_tokens_max=4, shared=True)
    found = behaviour_by_version(fresh, batch, versions.__getitem__)
    wanted = batch.loss_mask & (batch.token_versions != 8)
    part = behaviour_by_version(fresh, batch, versions.__getitem__, wanted)
    for version, params in versions.items():
        made = batch.loss_mask & (batch.token_versions == version)
        scores = fresh.behaviour(params, batch)
        for leaf, own, score in zip(found, part, scores, strict=True):
            np.testing.assert_allclose(leaf[made], score[made], atol=5e-6)
            np.testing.assert_array_equal(own[made], leaf[made] if version != 8 else 0.0)


@pytest.mark.parametrize("algorithm", ["grpo", "gspo", "cispo", "truncated-is"])
def test_tokens_of_the_current_policy_have_a_ratio_of_exactly_one(algorithm: str) -> None:
    config = LearnerConfig.model_validate(CONFIG.model_dump() | {"objective": {"algorithm": algorithm}})
    trainer = tiny_trainer(config)
    # 32 tokens: the mean of ones over a power of two is exact, in whatever order they are added up.
    rows = [tiny_row(index, (4 + index % 4, 3 + index % 5, 2, 1), reward) for index, reward in enumerate(REWARDS)]
    batch = pack(rows, time=TIME, objective=ObjectiveConfig(), completion_tokens_max=4)
    scored = trainer.behaviour(trainer.params(), batch)
    nonsense = np.full(batch.tokens.shape, -3.0, np.float32)
    values = trainer.train_step(batch, nonsense, batch.loss_mask)
    assert values["ratio_mean"] == 1.0
    assert values["kl_k3"] == 0.0
    assert values["grad_norm"] > 0.0
    for own, expected in zip(trainer.step_statistics(batch), scored, strict=True):
        np.testing.assert_allclose(own[batch.loss_mask], expected[batch.loss_mask], atol=5e-6)


def test_other_tokens_keep_their_own_behaviour(fresh: Trainer) -> None:
    batch = tiny_batch(REWARDS)
    behaviour = fresh.behaviour(fresh.params(), batch).logprobs - np.float32(0.1)
    on_policy = batch.loss_mask & (np.arange(len(REWARDS)) % 2 == 0)[:, None]
    values = fresh.train_step(batch, behaviour, on_policy)
    assert values["ratio_mean"] == pytest.approx(0.5 + 0.5 * np.exp(0.1), abs=1e-4)


def test_a_rollout_beyond_its_bound_has_no_weight_in_the_step(fresh: Trainer) -> None:
    """Tokens of tiny batches are not sampled from their seeds, so nearly all margins are far above 0."""
    batch = tiny_batch(REWARDS)
    behaviour = np.zeros(batch.tokens.shape, np.float32)
    before = copied_state(fresh)
    bounds = np.full(batch.tokens.shape, np.inf, np.float32)
    bounds[2] = -1.0  # of the third rollout
    fresh.train_step(batch, behaviour, batch.loss_mask, bounds)
    judged = copied_state(fresh)
    fresh.restore(before)
    weights = batch.weights.copy()
    weights[2] = 0.0
    fresh.train_step(replace(batch, weights=weights), behaviour, batch.loss_mask)
    for name, leaf in copied_state(fresh).items():
        np.testing.assert_array_equal(leaf, judged[name])
    assert any(not np.array_equal(leaf, before[name]) for name, leaf in judged.items())


def test_several_steps_a_batch_cannot_score_the_current_policy() -> None:
    several = CONFIG.model_dump() | {"objective": {"mini_batches": 2}}
    assert CONFIG.objective.passes == 1
    assert tiny_trainer().scores_on_policy
    assert not tiny_trainer(LearnerConfig.model_validate(several)).scores_on_policy


def test_a_version_holds_the_parameters_of_its_step_though_training_went_on(fresh: Trainer, tmp_path: Path) -> None:
    expected = freeze(MODEL, fresh.params())
    path = tmp_path / "state"
    path.touch()
    write = fresh.begin_freeze(path, 1)
    batch = tiny_batch(REWARDS)
    fresh.train_step(batch, fresh.behaviour(fresh.params(), batch).logprobs)
    write()
    assert write.tensors == expected.tensors
    assert path.read_bytes() == expected.state_bytes != fresh.snapshot().state_bytes


def test_the_snapshot_equals_what_the_rollout_reads(fresh: Trainer) -> None:
    snapshot = fresh.snapshot()
    thawed = thaw(MODEL, snapshot.tensors, snapshot.state_bytes)
    inputs = (jnp.array([[2, 3]], jnp.int32), jnp.array([[0, 1]], jnp.int32), jnp.ones((1, 2), jnp.int32), jnp.ones(1))
    forward = jax.jit(completion_logprobs, static_argnums=0, compiler_options=OPTIMISED)
    np.testing.assert_array_equal(
        forward(MODEL, thawed, *inputs).logprobs, forward(MODEL, fresh.params(), *inputs).logprobs
    )


def test_the_seed_decides_the_first_parameters() -> None:
    again = copied(tiny_trainer().params())
    other = copied(tiny_trainer(CONFIG.model_copy(update={"seed": 2})).params())
    expected = copied(initial_params(MODEL, 1))
    assert all(np.array_equal(again[name], expected[name]) for name in expected)
    assert not np.array_equal(other["embedding"], expected["embedding"])


def test_several_steps_a_batch_weigh_sequences_that_share_rows_by_their_first_policy() -> None:
    values = {"algorithm": "decoupled-ppo", "importance": "sequence", "mini_batches": 1, "epochs_per_batch": 2}
    config = LearnerConfig.model_validate(
        CONFIG.model_dump() | {"objective": values | {"kl": "k3", "kl_coefficient": 0.1}}
    )
    trainer = tiny_trainer(config)
    rows = [tiny_row(index, (4 + index % 4, 3, 1)[: 1 + index % 3], reward, 0) for index, reward in enumerate(REWARDS)]
    batch = pack(rows, time=3 * TIME, objective=config.objective, completion_tokens_max=4, shared=True)
    mask = batch.loss_mask
    # The behaviour differs from token to token, so that a ratio over the wrong tokens is another ratio.
    behaviour = np.where(mask, -2.0 - 0.05 * batch.tokens, 0.0).astype(np.float32)
    first, apart = copied(trainer.params()), trainer.behaviour(trainer.params(), batch).logprobs - behaviour
    report = trainer.train_step(batch, behaviour)
    weights = np.zeros(mask.shape)
    for row, number in {*zip(*np.nonzero(mask)[:1], batch.segments[mask], strict=True)}:
        own = mask[row] & (batch.segments[row] == number)
        weights[row][own] = min(np.exp(apart[row][own].mean()), 2.0)
    assert report["importance_mean"] == pytest.approx(weights[mask].mean(), abs=1e-5)
    assert report["reference_kl"] > 1e-6, "the second pass is of another policy than the first"
    state = trainer.state()
    assert all(np.array_equal(state[f"reference/{name}"], leaf) for name, leaf in stacked(first).items())
    counts = [leaf for name, leaf in state.items() if name.startswith("optimiser/") and name.endswith("count")]
    assert [int(count) for count in counts] == [2]
