from __future__ import annotations

import argparse

from bench.learner import roofline


def test_figures_name_each_set_and_gpu() -> None:
    parser = argparse.ArgumentParser()
    roofline.add_arguments(parser)
    figures = roofline.run(parser.parse_args([])).figures
    assert figures["modelled_settings"] == 28  # 34 settings minus one timed decode of each of 6 GPU types
    assert figures["measured_settings"] + figures["measured_busy_settings"] == 70
    assert figures["modelled_error_median"] <= figures["modelled_error_max"]
    assert figures["modelled_h100-sxm_error_max"] < 0.1
