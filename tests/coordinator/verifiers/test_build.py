"""Test that the configuration selects the scorer."""

from __future__ import annotations

from coordinator.config.config import VerifierConfig
from coordinator.config.tasks import ReasoningGymTask
from coordinator.verifiers.build import build_scorer
from coordinator.verifiers.pool import VerifierPool


def test_the_local_pool_is_the_default() -> None:
    assert isinstance(build_scorer(ReasoningGymTask(), 0, VerifierConfig()), VerifierPool)
