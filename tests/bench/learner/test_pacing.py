from __future__ import annotations

import argparse

import pytest

from bench.learner import pacing


@pytest.mark.sim
def test_pacing_drops_little_and_keeps_the_learner_busy() -> None:
    parser = argparse.ArgumentParser()
    pacing.add_arguments(parser)
    figures = pacing.run(parser.parse_args(["--steps", "25"])).figures
    assert figures["dropped_share"] < figures["dropped_share_none"]
    assert figures["utilisation"] > 0.9
    assert figures["utilisation_continue"] > 0.9
    assert figures["kill_goodput"] > 0.3  # above 1 in so short a run by what was under way at its start
    assert figures["violations_predict"] == 0
