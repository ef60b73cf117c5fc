"""Test objectives made from their configuration, and presets by name."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from pydantic import ValidationError

from learner.objective.build import objective
from learner.objective.config import ALGORITHMS, GROUPED, PRESETS, ObjectiveConfig, check_group_size
from learner.objective.objective import Terms
from rollcast.runtime.errors import ConfigError
from tests.learner.objective.packed_example import LENGTHS, completions, picked, terms_of
from tests.learner.objective.reference_objective import OBJECTIVES, Sequence, gradients, group_advantages, grpo

# GSPO clips at a few parts in ten thousand: with this spread both sides of its clips occur, as those of the others do.
SPREADS = dict.fromkeys(ALGORITHMS, 0.3) | {"gspo": 1e-3}


def value_and_gradient(config: ObjectiveConfig, sequences: list[Sequence]) -> tuple[float, list[Any]]:
    terms = terms_of(config, sequences)
    with jax.numpy_dtype_promotion("strict"):
        value, gradient = jax.value_and_grad(
            lambda logprobs: objective(config).value(terms._replace(logprobs=logprobs))
        )(terms.logprobs)
    assert np.all(np.asarray(gradient)[np.asarray(terms.loss_mask) == 0.0] == 0.0)
    return float(value), picked(np.asarray(gradient))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_preset_agrees_with_its_paper(algorithm: str) -> None:
    config = ObjectiveConfig.model_validate({"algorithm": algorithm})
    sequences = completions(3, SPREADS[algorithm])
    value, gradient = value_and_gradient(config, sequences)
    assert value == pytest.approx(OBJECTIVES[algorithm](sequences), abs=2e-6)
    for found, expected in zip(gradient, gradients(OBJECTIVES[algorithm], sequences), strict=True):
        np.testing.assert_allclose(found, expected, atol=3e-6)


@pytest.mark.parametrize("algorithm", ["grpo", "gspo", "decoupled-ppo", "ppo"])
def test_the_example_has_clipped_and_unclipped_tokens(algorithm: str) -> None:
    gradient = np.concatenate(gradients(OBJECTIVES[algorithm], completions(3, SPREADS[algorithm])))
    assert 0 < (gradient == 0.0).sum() < gradient.size


@pytest.mark.parametrize("kl", ["k1", "k2", "k3"])
def test_a_penalty_and_entropy_come_on_top(kl: str) -> None:
    config = ObjectiveConfig.model_validate({"kl": kl, "kl_coefficient": 0.1, "entropy_coefficient": 0.01})
    sequences = completions(4, 0.3)

    def expected(sequences: list[Sequence]) -> float:
        parts = []
        for one in sequences:
            apart = one.logprobs - one.reference
            frozen = one.frozen - one.reference
            ratio = np.exp(-apart)
            parts.append(
                {"k1": frozen * (1 + one.logprobs - one.frozen), "k2": apart**2 / 2, "k3": ratio - 1 + apart}[kl]
            )
        return grpo(sequences) - 0.1 * float(np.concatenate(parts).mean()) + 0.01 * 0.25

    value, gradient = value_and_gradient(config, sequences)
    assert value == pytest.approx(expected(sequences), abs=2e-6)
    for found, right in zip(gradient, gradients(expected, sequences), strict=True):
        np.testing.assert_allclose(found, right, atol=3e-6)


def test_sequence_weights_can_correct_a_log_probability() -> None:
    given = {"surrogate": "log-probability", "importance": "sequence", "importance_high": 1.1}
    config = ObjectiveConfig.model_validate(given)
    sequences = completions(5, 0.3)
    value, _ = value_and_gradient(config, sequences)
    worth = {
        id(one): advantage for one, advantage in zip(sequences, group_advantages(sequences, divide=True), strict=True)
    }
    parts = [
        min(float(np.prod(one.ratio)) ** (1 / len(one.ratio)), 1.1) * worth[id(one)] * one.logprobs for one in sequences
    ]
    assert value == pytest.approx(float(np.concatenate(parts).mean()), abs=2e-6)


def test_without_a_proximal_policy_the_current_one_serves() -> None:
    config = ObjectiveConfig.model_validate({"algorithm": "decoupled-ppo"})
    sequences = [dataclasses.replace(one, proximal=one.logprobs) for one in completions(3, 0.3)]
    terms = terms_of(config, sequences)
    with_it, without = (
        jax.grad(lambda logprobs, one=one: objective(config).value(one._replace(logprobs=logprobs)))(terms.logprobs)
        for one in (terms, terms._replace(proximal_logprobs=None))
    )
    np.testing.assert_allclose(with_it, without, atol=1e-7)
    assert np.abs(np.asarray(without)).max() > 0.0


def test_gauges_are_means_over_trained_tokens() -> None:
    config = ObjectiveConfig.model_validate({"algorithm": "two-sided", "kl": "k3", "kl_coefficient": 0.1})
    sequences = completions(3, 0.6)
    terms = terms_of(config, sequences)
    shares = terms.loss_mask / jnp.sum(terms.loss_mask)
    found = {name: float(value) for name, value in objective(config).metrics(terms, shares).items()}

    def mean(values: list[Any]) -> float:
        return float(np.concatenate(values).mean())

    weights = [np.exp(one.proximal - one.behaviour) for one in sequences]
    steps = [np.exp(one.logprobs - one.proximal) for one in sequences]
    expected = {
        "ratio_mean": mean([one.ratio for one in sequences]),
        "clip_fraction": mean([(step < 0.8) | (step > 1.28) for step in steps]),
        "kl_k3": mean([one.ratio - 1.0 - np.log(one.ratio) for one in sequences]),
        "entropy": 0.25,
        "importance_mean": mean([np.where((w >= 0.5) & (w <= 5.0), w, 0.0) for w in weights]),
        "importance_bounded": mean([(w < 0.5) | (w > 5.0) for w in weights]),
        "reference_kl": mean([np.exp(o.reference - o.logprobs) - 1 - o.reference + o.logprobs for o in sequences]),
    }
    assert found == pytest.approx(expected, abs=2e-6)


def tunix_loss(terms: Terms, aggregation: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[jax.Array], jax.Array]:
    """Return tunix's GRPO loss as a function of log-probabilities [sequences, tokens], without its forward pass."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        algo_core = pytest.importorskip("tunix.rl.algo_core")

    def given(_graph: Any, state: Any, **_inputs: Any) -> tuple[jax.Array, jax.Array]:
        return state["logprobs"].get_value(), jnp.zeros((*terms.logprobs.shape, 2))

    monkeypatch.setattr(algo_core.common, "compute_per_token_logps", given)
    example = SimpleNamespace(
        prompt_ids=None,
        completion_ids=None,
        completion_mask=terms.loss_mask,
        advantages=terms.advantages,
        old_per_token_logps=terms.behaviour_logprobs,
        ref_per_token_logps=terms.reference_logprobs,
    )
    config = SimpleNamespace(
        beta=0.1,
        epsilon=0.2,
        epsilon_high=0.28,
        loss_algo="grpo",
        loss_agg_mode=aggregation,
        temperature=1.0,
        kl_loss_mode="low_var_kl",
        kl_clamp_value=None,
    )

    def loss(logprobs: jax.Array) -> jax.Array:
        module = nnx.Module()
        module.logprobs = nnx.Param(logprobs)
        value: jax.Array = algo_core.grpo_loss_fn(module, example, config, 0, 1)[0]
        return value

    return loss


@pytest.mark.parametrize(
    ("aggregate", "aggregation"),
    [("token-mean", "token-mean"), ("trajectory-mean", "sequence-mean-token-mean")],
)
def test_grpo_agrees_with_tunix(aggregate: str, aggregation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = ObjectiveConfig.model_validate({"aggregate": aggregate, "kl": "k3", "kl_coefficient": 0.1})
    packed = terms_of(config, completions(8, 0.4))

    def alone(values: jax.Array) -> jax.Array:
        """Lay out each completion in a row of its own."""
        width = max(LENGTHS)
        return jnp.stack([jnp.pad(jnp.asarray(one), (0, width - len(one))) for one in picked(np.asarray(values))])

    rows = Terms(*(leaf if isinstance(leaf, int) else alone(leaf) for leaf in packed))
    theirs, their_gradient = jax.value_and_grad(tunix_loss(rows, aggregation, monkeypatch))(rows.logprobs)
    ours, our_gradient = jax.value_and_grad(
        lambda logprobs: -objective(config).value(rows._replace(logprobs=logprobs))
    )(rows.logprobs)
    assert float(ours) == pytest.approx(float(theirs), abs=1e-6)
    np.testing.assert_allclose(our_gradient, their_gradient, atol=1e-7)


def test_every_algorithm_has_a_preset() -> None:
    assert set(PRESETS) == set(ALGORITHMS)


def test_the_documentation_explains_each_preset() -> None:
    page = (Path(__file__).parents[3] / "docs" / "algorithms.md").read_text()
    assert all(f"| `{algorithm}` |" in page for algorithm in ALGORITHMS)


def test_a_preset_fills_in_absent_fields() -> None:
    gspo = ObjectiveConfig.model_validate({"algorithm": "gspo", "clip_high": 0.01})
    assert (gspo.surrogate, gspo.aggregate, gspo.clip_low) == ("sequence-clipped", "trajectory-mean", 3e-4)
    assert gspo.clip_high == 0.01
    grpo = ObjectiveConfig()
    assert (grpo.algorithm, grpo.aggregate, grpo.clip_low, grpo.clip_high) == ("grpo", "token-mean", 0.2, 0.28)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_resolved_preset_reads_as_itself(algorithm: str) -> None:
    config = ObjectiveConfig.model_validate({"algorithm": algorithm})
    assert ObjectiveConfig.model_validate(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"algorithm": "ppo2"}, "Input should be 'grpo'"),
        ({"importance": "truncated"}, "would apply it twice"),
        ({"algorithm": "reinforce", "proximal": True}, "needs a ratio to clip"),
        ({"proximal": True}, "does not correct for staleness"),
        ({"algorithm": "rloo", "epochs_per_batch": 2}, "set epochs_per_batch = 1"),
        ({"algorithm": "gspo", "advantage": "critic"}, "a critic gives one per token"),
        ({"algorithm": "reinforce++", "dynamic_sampling": True}, "has no groups"),
        ({"algorithm": "cispo", "importance_low": 2.0}, "not below importance_high"),
        ({"algorithm": "two-sided", "importance_low": 1.5}, "keeps ratios around 1"),
        ({"algorithm": "truncated-is", "importance_high": 0.5}, "cuts off rollouts of the current policy"),
        ({"kl": "k3"}, "give both or none"),
        ({"kl_coefficient": 0.1}, "give both or none"),
        ({"algorithm": "reinforce", "pair_share": 0.5}, "has no groups"),
        ({"advantage": "none"}, "set teacher_coefficient"),
    ],
)
def test_contradictory_settings_are_refused_with_a_reason(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        ObjectiveConfig.model_validate(given)


def test_one_completion_a_prompt_has_no_group_to_compare_with() -> None:
    for algorithm in ALGORITHMS:
        config = ObjectiveConfig.model_validate({"algorithm": algorithm})
        check_group_size(config, 2)
        if config.advantage in GROUPED:
            with pytest.raises(ConfigError, match="groups of 1"):
                check_group_size(config, 1)
        else:
            check_group_size(config, 1)


def test_steps_a_batch_are_epochs_times_parts() -> None:
    assert ObjectiveConfig.model_validate({"epochs_per_batch": 3, "mini_batches": 4}).passes == 12
