"""Test which sampled problems are kept."""

from __future__ import annotations

import pytest

from coordinator.prompts import sampled as sampled_module
from coordinator.prompts.sampled import SampledProblems
from coordinator.tasks.checks.task import Problem


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampled_module, "NEWEST_KEPT", 4)


def problems(*numbers: int) -> list[Problem]:
    return [Problem(str(number), "1+1=", "2", {}) for number in numbers]


def test_problems_in_use_and_the_newest_stay_however_many_are_sampled() -> None:
    kept = SampledProblems()
    kept.in_use = lambda: {"0", "500"}
    for number in range(1_000):
        kept.keep(problems(number))
        assert len(kept) <= 2 + 2 * 4
    assert [kept[name].problem_id for name in ("0", "500", "996", "999")] == ["0", "500", "996", "999"]
    with pytest.raises(KeyError):
        kept["501"]


def test_problems_that_the_core_was_not_given_yet_stay() -> None:
    """A request for many is answered in one go, and the core names none of them before."""
    kept = SampledProblems()
    kept.in_use = set
    for first in range(0, 300, 100):
        kept.keep(problems(*range(first, first + 100)))
        assert kept[str(first)].problem_id == str(first)


def test_a_problem_that_is_sampled_again_is_a_new_one() -> None:
    kept = SampledProblems()
    kept.in_use = set
    kept.keep(problems(*range(8)))
    kept.keep(problems(0))
    kept.keep(problems(*range(10, 14)))
    assert kept["0"].problem_id == "0"


def test_nothing_is_forgotten_before_there_is_a_core() -> None:
    kept = SampledProblems()
    for number in range(100):
        kept.keep(problems(number))
    assert len(kept) == 100
