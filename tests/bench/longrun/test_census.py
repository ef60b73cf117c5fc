"""Test samples of real processes, and the slopes that count as growth."""

from __future__ import annotations

import json
import os
from pathlib import Path
from random import Random

import pytest

from bench.longrun.census import Census, Life, Sample, growth, growths, leaking, slope_per_hour

COUNTS = {"asyncio_tasks": 3, "trio_tasks": 2, "objects": 1000}


def life(name: str, seconds: int, *, rss_per_hour: float = 0.0, tasks_per_hour: float = 0.0) -> Life:
    random = Random(1)
    samples = [
        Sample(
            at_s,
            100.0 + (30.0 if at_s > 60 else 0.0) + rss_per_hour * at_s / 3600.0 + random.uniform(-2, 2),
            20.0,
            9.0,
            10.0 + tasks_per_hour * at_s / 3600.0,
            4.0,
            50_000.0,
        )
        for at_s in range(0, seconds, 15)
    ]
    return Life(name, 1, samples)


def test_a_slope_is_that_of_most_pairs() -> None:
    points = [(float(at_s), 2.0 * at_s) for at_s in range(100)]
    points[50] = (50.0, 1e6)
    assert slope_per_hour(points) == pytest.approx(7200.0)
    assert slope_per_hour(points[:7]) is None


def test_many_samples_are_thinned_out() -> None:
    assert slope_per_hour([(float(at_s), float(at_s)) for at_s in range(2000)]) == pytest.approx(3600.0)


def test_a_single_rise_is_no_growth_and_a_continued_one_is() -> None:
    steady = growth(life("a", 3600), warm_up_s=300.0, warm_least_s=600.0)
    assert leaking(steady) == []
    assert abs(steady["rss_mib"]) < 2.0
    grows = growth(life("a", 3600, rss_per_hour=100.0, tasks_per_hour=20.0), warm_up_s=300.0, warm_least_s=600.0)
    assert leaking(grows) == ["rss_mib", "asyncio_tasks"]


def test_short_lives_do_not_count_and_the_last_one_does() -> None:
    lives = [life("a", 3600, rss_per_hour=500.0), life("b", 600), life("a", 3600)]
    found = growths(lives, warm_up_s=300.0, warm_least_s=600.0)
    assert set(found) == {"a"}
    assert leaking(found["a"]) == []


def test_a_process_is_sampled_once_it_has_counted_itself(tmp_path: Path) -> None:
    census = Census(tmp_path)
    census.take("a", os.getpid(), 1.0)
    assert census.lives == []
    line = json.dumps({"pid": os.getpid(), **COUNTS})
    census.file_of("a").write_text(f'{line}\n{{"pid": 1, "asyn')
    census.take("a", os.getpid(), 2.0)
    census.take("a", os.getpid(), 3.0)
    (one,) = census.lives
    assert [sample.at_s for sample in one.samples] == [2.0, 3.0]
    assert one.samples[0].rss_mib > 1.0
    assert one.samples[0].descriptors >= 3
    assert one.samples[0].asyncio_tasks == 3


def test_counts_of_an_earlier_process_are_not_this_ones(tmp_path: Path) -> None:
    census = Census(tmp_path)
    census.file_of("a").write_text(json.dumps({"pid": os.getpid() + 1, **COUNTS}) + "\n")
    census.take("a", os.getpid(), 1.0)
    assert census.lives == []
