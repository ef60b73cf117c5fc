"""Test that a killed learner resumes to the same bits, and that a fleet works on while its coordinator is away."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import pytest

from bench.durability import away
from bench.durability.resume import ELSEWHERE, OCCURRENCE, STEPS, WHEN_RESUMED, Kill, lives_of, one_run
from bench.longrun.stalls import Moment
from bench.wan import build
from learner.kill_points import LABELS
from tests.conftest import COMPILATION_CACHE
from tests.learner.scripted_run import Authority

PUBLISHED = [Moment(10.0, 3), Moment(20.0, 4)]


def test_a_newer_version_counts_as_well_and_one_that_comes_too_late_does_not() -> None:
    figures = away.arrived(PUBLISHED, [[Moment(11.0, 3), Moment(21.0, 4)], [Moment(24.0, 4)]], 50.0)
    assert (figures["versions"], figures["held_by_all_share"], figures["copies_share"]) == (2, 1.0, 1.0)
    assert figures["held_by_all_max_s"] == 14.0
    assert figures["held_median_s"] == 2.5
    late = away.arrived(PUBLISHED, [[Moment(11.0, 3), Moment(60.0, 4)], [Moment(12.0, 3)]], 50.0)
    assert (late["held_by_all_share"], late["copies_share"], late["held_by_all_max_s"]) == (0.5, 0.5, 2.0)


def test_versions_that_never_arrive_have_no_times() -> None:
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


def test_every_label_is_tried_or_listed_as_tested_elsewhere() -> None:
    assert {*OCCURRENCE, *WHEN_RESUMED, *ELSEWHERE} <= set(LABELS)
    assert len(LABELS) - len(ELSEWHERE) >= 20


@pytest.mark.slow  # tests/learner/test_service.py kills learners within one process
@pytest.mark.timeout(300)
async def test_a_killed_learner_resumes_to_the_same_bits(tmp_path: Path) -> None:
    """Kill real processes while a version is written, and before a checkpoint is durable.

    A life costs seconds: `python -m bench resume` tries every label, and tests/learner/test_service.py ends a life
    between steps.
    """
    COMPILATION_CACHE.mkdir(parents=True, exist_ok=True)
    (tmp_path / "compilation-cache").symlink_to(COMPILATION_CACHE)
    authority = Authority(tmp_path / "authority")
    kills = [Kill("version_half_written", 2), Kill("checkpoint_renamed", 1)]
    async with lives_of() as learner:
        reference, lives = await one_run(authority, tmp_path / "reference", learner, [])
        assert lives == 1
        trajectory, lives = await one_run(authority, tmp_path / "killed", learner, kills, must=kills[-1])
    assert lives == 3
    assert trajectory == reference
    assert [version for version, _, _ in trajectory.versions] == list(range(STEPS + 1))
    assert trajectory.contents == 1
    assert trajectory.trained == ((1, 4 * STEPS),)
