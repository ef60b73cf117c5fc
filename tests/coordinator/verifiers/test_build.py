"""Test that the configuration selects the scorer."""

from __future__ import annotations

from pathlib import Path

from coordinator.config.config import VerifierConfig
from coordinator.config.tasks import ReasoningGymTask
from coordinator.verifiers.build import build_scorer
from coordinator.verifiers.pool import VerifierPool


def test_the_local_pool_is_the_default() -> None:
    scorer = build_scorer(ReasoningGymTask(), 0, VerifierConfig())
    assert isinstance(scorer, VerifierPool)
    assert not scorer.decodes


def test_only_processes_of_this_machine_decode_with_a_published_tokenizer(tmp_path: Path) -> None:
    decodes = [
        build_scorer(ReasoningGymTask(), 0, VerifierConfig(pool=pool), tokenizer_folder=tmp_path).decodes
        for pool in ("local", "ray")
    ]
    assert decodes == [True, False]
