"""bench.durability.away: what counts as held by all, and a real fleet whose coordinator dies."""

from __future__ import annotations

import argparse
import math

import pytest

from bench.durability import away
from bench.longrun.stalls import Moment
from bench.wan import build

PUBLISHED = [Moment(10.0, 3), Moment(20.0, 4)]


def test_a_newer_version_counts_as_well_and_one_that_comes_too_late_does_not() -> None:
    figures = away.arrived(PUBLISHED, [[Moment(11.0, 3), Moment(21.0, 4)], [Moment(24.0, 4)]], 50.0)
    assert (figures["versions"], figures["held_by_all_share"], figures["copies_share"]) == (2, 1.0, 1.0)
    assert figures["held_by_all_max_s"] == 14.0
    assert figures["held_median_s"] == 2.5
    late = away.arrived(PUBLISHED, [[Moment(11.0, 3), Moment(60.0, 4)], [Moment(12.0, 3)]], 50.0)
    assert (late["held_by_all_share"], late["copies_share"], late["held_by_all_max_s"]) == (0.5, 0.5, 2.0)


def test_where_nothing_came_there_are_no_times() -> None:
    figures = away.arrived(PUBLISHED, [[], []], 50.0)
    assert figures["held_by_all_share"] == 0.0
    assert math.isnan(figures["held_by_all_max_s"])


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.skipif(bool(build.why_not()), reason=build.why_not())
def test_versions_arrive_while_the_coordinator_is_dead_and_peers_come_back() -> None:
    parser = argparse.ArgumentParser()
    away.add_arguments(parser)
    short = ("--seconds", "20", "--before", "6", "--last", "6", "--peers", "3", "--interval", "3", "--kib", "64")
    figures = away.run(parser.parse_args(short)).figures
    assert figures["versions"] >= 3
    assert figures["held_by_all_share"] == 1.0
    assert figures["ended_by_themselves"] == 0
    assert figures["back_s"] < 60.0
