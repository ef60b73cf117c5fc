from __future__ import annotations

from pathlib import Path

import pytest

from bench.durability.resume import ELSEWHERE, OCCURRENCE, STEPS, WHEN_RESUMED, Kill, lives_of, one_run
from learner.kill_points import LABELS
from tests.learner.scripted_run import Authority


def test_every_label_is_tried_or_said_to_be_elsewhere() -> None:
    assert {*OCCURRENCE, *WHEN_RESUMED, *ELSEWHERE} <= set(LABELS)
    assert len(LABELS) - len(ELSEWHERE) >= 20


@pytest.mark.timeout(300)
async def test_a_learner_that_is_killed_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    """Real processes: before training ids count, while a version is written, and before a checkpoint is durable."""
    authority = Authority(tmp_path / "authority")
    kills = [Kill("gradient_done", 2), Kill("version_half_written", 2), Kill("checkpoint_renamed", 1)]
    async with lives_of() as learner:
        reference, lives = await one_run(authority, tmp_path / "reference", learner, [])
        assert lives == 1
        trajectory, lives = await one_run(authority, tmp_path / "killed", learner, kills, must=kills[-1])
    assert lives == 4
    assert trajectory == reference
    assert [version for version, _, _ in trajectory.versions] == list(range(STEPS + 1))
    assert trajectory.contents == 1
    assert trajectory.trained == ((1, 4 * STEPS),)
