from __future__ import annotations

import pytest

from learner.wall_time import StepTime, WallTime


class Clocks:
    """Wall time and compile time as a script."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.compiled_s = 5.0

    def pass_(self, seconds: float, *, compiling: float = 0.0) -> None:
        self.now_s += seconds
        self.compiled_s += compiling

    def now(self) -> float:
        return self.now_s

    def compiled(self) -> float:
        return self.compiled_s


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


def test_every_second_of_a_life_has_one_cause(clocks: Clocks) -> None:
    life = WallTime(clocks.now, clocks.compiled, lambda: clocks.now_s + 1e9)
    clocks.pass_(2.0)
    life.spent("starting")
    clocks.pass_(5.0, compiling=3.0)
    life.spent("warm_start")
    clocks.pass_(1.0)
    life.spent("steps")
    clocks.pass_(1.5)
    life.spent("steps")
    clocks.pass_(0.5)
    life.spent("replay")
    figures = life.figures()
    assert figures.pop("life_began_unix_s") == 1e9 + 100.0
    assert figures["life_s"] == 10.0
    assert (figures["life_warm_start_s"], figures["life_compile_s"]) == (2.0, 3.0)
    assert (figures["life_steps_s"], figures["life_replay_s"]) == (2.5, 0.5)
    assert sum(value for name, value in figures.items() if name != "life_s") == figures["life_s"]


def test_compiling_beside_other_work_never_counts_more_than_what_passed(clocks: Clocks) -> None:
    life = WallTime(clocks.now, clocks.compiled)
    clocks.pass_(1.0, compiling=4.0)
    life.spent("starting")
    assert life.figures()["life_compile_s"] == life.figures()["life_s"] == 1.0


def test_the_parts_of_a_step_are_the_step(clocks: Clocks) -> None:
    step = StepTime(clocks.now, clocks.compiled)
    clocks.pass_(0.25)
    with step.part("wait_s"):
        clocks.pass_(3.0)
    with step.part("train_s"):
        clocks.pass_(2.0, compiling=1.5)
    first = step.end()
    assert first == {
        "wait_s": 3.0,
        "behaviour_s": 0.0,
        "train_s": 0.5,
        "compile_s": 1.5,
        "publish_s": 0.0,
        "checkpoint_s": 0.0,
        "other_s": 0.25,
        "step_s": 5.25,
    }
    clocks.pass_(1.0)
    assert step.end()["other_s"] == step.end()["step_s"] + 1.0
