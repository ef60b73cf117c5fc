"""bench.longrun.hour: figures from what was seen, and a real fleet for some seconds."""

from __future__ import annotations

import argparse

import pytest

from bench.longrun import hour
from bench.longrun.fleet import nodes_of
from bench.wan import build


def arguments(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    hour.add_arguments(parser)
    return parser.parse_args(given)


def test_every_second_home_is_behind_a_router_of_each_kind() -> None:
    origin, *homes = nodes_of(16)
    assert origin.nat is None
    assert [home.nat is not None for home in homes] == [False, True] * 8
    assert {home.nat for home in homes} == {None, "full-cone", "port-restricted", "symmetric"}


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.skipif(bool(build.why_not()), reason=build.why_not())
def test_a_fleet_is_disturbed_and_watched(capsys: pytest.CaptureFixture[str]) -> None:
    short = ("--hours", "0.004", "--peers", "2", "--interval", "2", "--every", "3", "--no-p2p", "--kib", "64")
    figures = hour.run(arguments(*short)).figures
    assert figures["seconds"] == pytest.approx(14.4, abs=5.0)
    assert figures["versions"] >= 4
    assert figures["ended_by_themselves"] == 0
    assert figures["held_median_s"] < 5.0
    assert figures["cores"] > 0.0
