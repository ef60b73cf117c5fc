"""Test the benchmarks of prediction errors, and of the speed of the simulator that gives the true figures."""

from __future__ import annotations

import argparse

import pytest

from bench.prediction import prediction, simspeed
from bench.prediction.grid import grid


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    prediction.add_arguments(parser)
    return parser.parse_args(arguments)


def test_the_grid_has_its_documented_points() -> None:
    points = grid()
    assert len(points) >= 60
    assert len({point.name for point in points}) == len(points)
    assert {point.kappa for point in points} == {1, 2, 4}
    assert {point.spare for point in points} >= {-2, -1, 0, 1, 2}
    assert (min(point.phi for point in points), max(point.phi for point in points)) == (0.7, 1.5)
    assert (min(point.workers for point in points), max(point.workers for point in points)) == (8, 64)
    assert any(point.pauses for point in points)
    assert any(point.preemptions_per_hour for point in points)


def test_a_point_has_its_declared_size() -> None:
    for point in grid():
        demand, workers, _ = point.build()
        assert len(workers) == point.workers
        needed = demand.rollouts_per_step / demand.t_train_s
        rate = sum(speed.rollouts_per_second * (1 - worker.preemption_loss) for worker, speed in workers)
        if not point.pauses:
            assert rate / needed == pytest.approx(point.phi)
    base = prediction.in_words(grid()[16])
    assert base == "base"


def test_errors_are_listed_with_their_worst() -> None:
    outcome = prediction.run(parsed("--every", "60", "--steps", "15", "--warm-up-steps", "10"))
    assert outcome.figures["points"] == 2
    assert outcome.figures["violations"] == 0
    assert 0.0 <= outcome.figures["error_median"] <= outcome.figures["error_max"]
    assert outcome.settings["worst"][0].startswith(f"{outcome.figures['error_max']:.1%}")


def test_it_measures_a_small_fleet() -> None:
    parser = argparse.ArgumentParser()
    simspeed.add_arguments(parser)
    figures = simspeed.run(parser.parse_args(["--peers", "4", "--hours", "0.2"])).figures
    assert figures["realtime_factor"] > 100
    assert figures["events_per_cpu_s"] > 100
    assert figures["violations"] == 0
    assert figures["steps"] > 3
