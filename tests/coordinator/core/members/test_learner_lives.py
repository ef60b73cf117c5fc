from __future__ import annotations

import pytest

from coordinator.core.members import learner_lives
from coordinator.core.members.learner_lives import LearnerLives


def values(began_unix_s: float, **seconds: float) -> dict[str, float]:
    return {"life_began_unix_s": began_unix_s, "life_s": sum(seconds.values()), "reward": 1.0} | {
        f"life_{name}_s": value for name, value in seconds.items()
    }


def test_one_life_is_what_it_says() -> None:
    lives = LearnerLives()
    assert not lives.said({"reward": 1.0})
    assert lives.said(values(100.0, starting=10.0))
    assert lives.said(values(100.0, starting=10.0, steps=20.0))
    assert lives.wall_s == 30.0
    assert lives.seconds() == {"starting": 10.0, "steps": 20.0, "away": 0.0}


def test_a_long_stretch_is_one_life_however_often_it_speaks() -> None:
    lives = LearnerLives()
    assert lives.said(values(100.0, starting=0.5))
    assert not lives.said(values(100.0, starting=0.5))  # in the middle of a warm start
    assert lives.said(values(100.0, starting=0.5, warm_start=60.0))
    assert (len(lives.lives), lives.wall_s) == (1, 60.5)
    assert lives.seconds() == {"starting": 0.5, "warm_start": 60.0, "away": 0.0}


def test_between_lives_the_learner_was_away() -> None:
    lives = LearnerLives()
    lives.said(values(100.0, starting=10.0))
    lives.said(values(130.0, starting=5.0, replay=10.0))
    assert not lives.said(values(100.0, starting=10.0, steps=1.0)), "of the life before: it comes late"
    lives.said(values(130.0, starting=5.0, replay=10.0, steps=5.0))
    assert lives.wall_s == 50.0
    assert lives.seconds() == {"starting": 15.0, "replay": 10.0, "steps": 5.0, "away": 20.0}
    assert sum(lives.seconds().values()) == lives.wall_s


def test_lives_survive_the_ledger() -> None:
    lives = LearnerLives()
    lives.said(values(100.0, starting=10.0))
    assert LearnerLives.from_json(lives.to_json()) == lives


def test_many_lives_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner_lives, "LIVES_MAX", 3)
    lives = LearnerLives()
    for number in range(1, 11):
        lives.said(values(number * 100.0, steps=60.0))
    assert len(lives.lives) == 3
    assert lives.wall_s == 960.0
    assert lives.seconds() == {"steps": 600.0, "away": 360.0}
