from __future__ import annotations

import argparse

import pytest

from bench import pacing


@pytest.mark.sim
def test_pacing_drops_little_and_keeps_the_learner_busy() -> None:
    parser = argparse.ArgumentParser()
    pacing.add_arguments(parser)
    figures = pacing.run(parser.parse_args(["--steps", "25"])).figures
    assert figures["dropped_share"] < figures["dropped_share_none"]
    assert figures["utilisation"] > 0.9
    assert 0.3 < figures["kill_goodput"] <= 1.0
    assert figures["violations_predict"] == 0
