from __future__ import annotations

import jax
import numpy as np
import pytest

from learner.objective.build import objective
from learner.objective.config import ObjectiveConfig
from learner.objective.objective import Objective, Terms, current_to_reference
from tests.learner.objective.packed_example import LENGTHS, completions, lay_out, picked, terms_of

GRPO = ObjectiveConfig()


@pytest.fixture(scope="module")
def terms() -> Terms:
    return terms_of(GRPO, completions(3, 0.3))


def test_parts_of_a_batch_add_up(terms: Terms) -> None:
    def rows(part: slice) -> Terms:
        return Terms(*(leaf if isinstance(leaf, int) else leaf[part] for leaf in terms))

    value = objective(GRPO).value
    total = float(value(rows(slice(0, 1)))) + float(value(rows(slice(1, 3))))
    assert total == pytest.approx(float(value(terms)), abs=1e-6)


def test_correction_and_regulariser_are_separate_factors(terms: Terms) -> None:
    preset = objective(GRPO)
    halved = Objective(lambda terms: 0.5 * preset.correction(terms), preset.gradient, preset.regulariser, {})
    raised = Objective(preset.correction, preset.gradient, preset.correction, {})
    value = float(preset.value(terms))
    assert float(halved.value(terms)) == pytest.approx(0.5 * value, abs=1e-6)
    assert float(raised.value(terms)) == pytest.approx(value + 1.0, abs=1e-6)


def test_means_of_sequences_leave_out_prompts_and_other_sequences(terms: Terms) -> None:
    numbers = [np.arange(length, dtype=np.float32) + 10.0 * index for index, length in enumerate(LENGTHS)]
    values = lay_out(numbers) + np.where(np.asarray(terms.loss_mask) > 0.0, 0.0, 1e30).astype(np.float32)
    means = np.asarray(terms.sequence_mean(jax.numpy.asarray(values, jax.numpy.float32)))
    for found, own in zip(picked(means), numbers, strict=True):
        np.testing.assert_allclose(found, own.mean(), rtol=1e-6)
    assert np.all(means[np.asarray(terms.sequence) < 0] == 0.0)


@pytest.mark.parametrize("algorithm", ["grpo", "gspo", "two-sided", "truncated-is"])
def test_tokens_off_the_mask_cannot_overflow(algorithm: str) -> None:
    config = ObjectiveConfig.model_validate({"algorithm": algorithm})
    terms = terms_of(config, completions(3, 0.3))
    wild = jax.numpy.where(terms.loss_mask > 0.0, terms.logprobs, 1e30)
    gradient = jax.grad(lambda logprobs: objective(config).value(terms._replace(logprobs=logprobs)))(wild)
    assert np.all(np.isfinite(gradient))


def test_a_penalty_needs_the_reference(terms: Terms) -> None:
    with pytest.raises(ValueError, match="reference_logprobs"):
        current_to_reference(terms._replace(reference_logprobs=None))
