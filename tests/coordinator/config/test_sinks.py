"""[metrics] of the coordinator's configuration."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from coordinator.config.sinks import MetricsConfig


@pytest.mark.parametrize("sinks", [["file"], ["tensorboard", "tensorboard"], ["wandb", "tensorboard", "wandb"]])
def test_unknown_and_repeated_sinks_are_refused(sinks: list[str]) -> None:
    with pytest.raises(ValidationError):
        MetricsConfig.model_validate({"sinks": sinks})
