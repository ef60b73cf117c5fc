"""Test which machine trains a model, and what it, the coordinator and storage cost."""

from __future__ import annotations

import pytest

from capacity.catalogue.models import models
from capacity.model.roofline import ModelShape
from capacity.questions.central_machines import (
    MEASURED_UNCERTAINTY,
    SCALED_UNCERTAINTY,
    central_machines_of,
    learner_machines,
)
from rollcast.runtime.errors import ConfigError
from tests.capacity.questions.test_scenario import shipped_demand

TOKENS = 2276.0


def test_eight_h100_train_a_measured_model_for_the_least_money() -> None:
    found = central_machines_of(shipped_demand(), models()["qwen3-4b"], TOKENS)
    assert found.learner is not None
    assert found.learner.name == "8 x h100-sxm"
    assert found.learner.relative_uncertainty == MEASURED_UNCERTAINTY
    assert found.learner_usd_per_hour == pytest.approx(8 * 2.29)
    assert found.t_train_s == pytest.approx(512 * TOKENS / found.learner.tokens_per_second)
    assert found.others[0].hardware == "h200-sxm"
    assert 0 < found.storage_usd_per_hour < found.coordinator_usd_per_hour < 0.1


def test_a_model_without_a_measurement_takes_longer_by_its_parameters() -> None:
    small, large = models()["qwen3-4b"], models()["qwen3-8b"]
    measured, scaled = (learner_machines(one, 8704, adapters=False)[0] for one in (small, large))
    ratio = large.parameters / small.parameters
    assert measured.tokens_per_second / scaled.tokens_per_second == pytest.approx(ratio)
    assert scaled.relative_uncertainty == SCALED_UNCERTAINTY
    assert "times 0.49" in scaled.pace_source


def test_what_is_given_counts_more_than_the_catalogue() -> None:
    settings = ("demand.t_train_s=60", "demand.learner_usd_per_hour=5", "demand.storage_usd_per_hour=0")
    found = central_machines_of(shipped_demand(*settings), models()["qwen3-4b"], TOKENS)
    assert (found.t_train_s, found.learner_usd_per_hour, found.storage_usd_per_hour) == (60.0, 5.0, 0.0)
    assert found.others == ()
    asked = shipped_demand("demand.learner_hardware=NVIDIA H200")
    found = central_machines_of(asked, models()["qwen3-4b"], TOKENS)
    assert found.learner is not None
    assert found.learner.hardware == "h200-sxm"


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        (models()["qwen3-235b-a22b"], ()),  # the optimiser does not fit
        (models()["qwen3-4b"], ("demand.learner_hardware=l4",)),
        (None, ()),
    ],
)
def test_without_a_step_time_it_must_be_given(model: ModelShape | None, settings: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="step time") as raised:
        central_machines_of(shipped_demand(*settings), model, TOKENS)
    assert "t_train_s" in str(raised.value)
    assert central_machines_of(shipped_demand(*settings, "demand.t_train_s=60"), model, TOKENS).t_train_s == 60.0
