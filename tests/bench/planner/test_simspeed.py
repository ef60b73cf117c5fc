from __future__ import annotations

import argparse

from bench.planner import simspeed


def test_it_measures_a_small_fleet() -> None:
    parser = argparse.ArgumentParser()
    simspeed.add_arguments(parser)
    figures = simspeed.run(parser.parse_args(["--peers", "4", "--hours", "0.2"])).figures
    assert figures["realtime_factor"] > 100
    assert figures["events_per_cpu_s"] > 100
    assert figures["violations"] == 0
    assert figures["steps"] > 3
