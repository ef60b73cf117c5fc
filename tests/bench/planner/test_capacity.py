"""Test the benchmarks of the planner's quality and speed, as a function and from the command line."""

from __future__ import annotations

import argparse
import json
import math
import random
from dataclasses import replace

import pytest

from bench.__main__ import main
from bench.planner import capacity, certificate
from bench.planner.capacity_pools import SETTINGS, demand, pool
from capacity.planner.plans import Infeasible


def figures(*arguments: str) -> dict[str, float]:
    parser = argparse.ArgumentParser()
    capacity.add_arguments(parser)
    return capacity.run(parser.parse_args(arguments)).figures


@pytest.mark.slow  # tests/capacity/planner compares small pools with every set
def test_a_small_pool_is_planned_near_the_bound() -> None:
    found = figures("--workers", "400", "--pools", "1", "--rollouts-per-step", "512")
    assert found["feasible"] == 1
    assert 0 <= found["gap_median"] <= found["gap_max"] < 0.05
    assert found["seconds_max"] > 0
    assert found["promised_cpu_seconds"] > 0
    assert 0 <= found["cheapest_first_feasible"] <= 1


def test_pools_are_the_same_for_the_same_seed_and_of_every_setting() -> None:
    assert pool(50, seed=1) == pool(50, seed=1)
    assert pool(50, seed=1) != pool(50, seed=2)
    assert {worker.provider for worker in pool(200, seed=0)} == {setting.name for setting in SETTINGS}
    assert all(worker.speeds for worker in pool(50, seed=0))
    assert demand().budget_s == 420.0


@pytest.mark.slow  # it times what the tests of the planner and of the command run anyway
def test_it_times_whole_processes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capacity_cli", "--repeats", "1", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert figures["solve_s"] > 0
    assert figures["plan_cpu_s"] > 0
    assert figures["plan_cold_s"] <= figures["plan_cold_s_max"]


def test_exhaustive_searches_confirm_the_plans_of_random_pools(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certificate", "--small", "8", "--large", "0", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert figures["pools"] == 8
    assert figures["false"] == 0
    assert 0 < figures["infeasible"] < 8


def test_a_bound_above_a_real_set_and_a_wrong_verdict_are_false() -> None:
    made = certificate.small_judgement(random.Random(0)).made
    assert made.feasible
    assert not certificate.Judgement(made, made.usd_per_hour).is_false
    assert certificate.Judgement(made, made.lp_bound_usd_per_hour * 0.9).is_false
    refused = replace(made, infeasible=Infeasible("rate", "too slow", ()))
    assert certificate.Judgement(refused, 1.0).is_false
    assert not certificate.Judgement(refused, math.inf).is_false
    unproven = replace(made, infeasible=Infeasible("rate", "too slow", (), proven=False))
    assert not certificate.Judgement(unproven, 1.0).is_false
