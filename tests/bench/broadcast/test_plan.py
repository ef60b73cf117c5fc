"""Test relay plans and their times: the golden case, plans for hundreds of peers, stripes and whole copies."""

from __future__ import annotations

import argparse

import pytest

from bench.broadcast import golden, plan, shapes


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


def test_the_golden_case_is_reproduced() -> None:
    parser = argparse.ArgumentParser()
    golden.add_arguments(parser)
    figures = golden.run(parser.parse_args([])).figures
    assert figures["direct_s"] == pytest.approx(176, abs=0.5)
    assert figures["relayed_s"] == pytest.approx(92, abs=0.5)


def test_the_factor_of_stripes_is_near_the_loss_of_whole_copies() -> None:
    parser = argparse.ArgumentParser()
    shapes.add_arguments(parser)
    figures = shapes.run(parser.parse_args(["--peers", "2000"])).figures
    for stripes in (4, 8, 16):
        assert figures[f"stripes_{stripes}"] == pytest.approx(figures[f"eta_{stripes}"], abs=0.05)
    assert figures["stripes_1"] == figures["tree"]
    assert figures["tree"] < figures["chain"] < figures["star"]
