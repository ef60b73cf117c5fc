from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from learner.objective.config import ALGORITHMS, GROUPED, PRESETS, ObjectiveConfig, check_group_size
from rollcast.runtime.errors import ConfigError


def test_every_algorithm_has_a_preset() -> None:
    assert set(PRESETS) == set(ALGORITHMS)


def test_the_documentation_says_what_each_preset_is_for() -> None:
    page = (Path(__file__).parents[3] / "docs" / "algorithms.md").read_text()
    assert all(f"| `{algorithm}` |" in page for algorithm in ALGORITHMS)


def test_a_preset_fills_in_what_is_not_given() -> None:
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
    ("given", "said"),
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
    ],
)
def test_what_makes_no_sense_is_refused_with_a_reason(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
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
