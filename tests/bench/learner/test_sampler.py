from __future__ import annotations

import argparse

import pytest

from bench.learner import sampler

pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.mark.slow
def test_both_samplers_get_the_same_work_and_report_every_figure() -> None:
    parser = argparse.ArgumentParser()
    sampler.add_arguments(parser)
    small = "--layers 1 --width 128 --vocabulary 64 --prompt 20 --tokens 3 --rounds 1 --batch 2".split()  # noqa: SIM905
    figures = sampler.run(parser.parse_args(small)).figures
    assert {"ratio_b2", "roofline_share", "tokens_s_b2", "transformers_tokens_s_b2"} <= figures.keys()
    assert all(value > 0.0 for value in figures.values())
