from __future__ import annotations

import argparse

import pytest

from bench.broadcast import plan


def figures(*arguments: str) -> dict[str, float]:
    parser = argparse.ArgumentParser()
    plan.add_arguments(parser)
    return plan.run(parser.parse_args(arguments)).figures


def test_a_plan_for_some_hundred_peers_is_quick_and_near_the_bound() -> None:
    found = figures("--peers", "300")
    assert 0 < found["seconds"] < 1
    assert 1 <= found["bound_ratio"] <= 1.10
    assert found["stripes_interior_max"] == 1
    assert found["depth_max"] <= 6


@pytest.mark.parametrize("peers", [1, 10])
def test_few_peers_are_a_mesh(peers: int) -> None:
    found = figures("--peers", str(peers), "--seed", "1")
    assert found["bound_ratio"] >= 1
    assert found["degree_max"] == max(1, peers - 1)
