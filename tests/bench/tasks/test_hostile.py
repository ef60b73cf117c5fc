"""Test that the hostile programs of the benchmark are many and hostile; the benchmark scores them all."""

from __future__ import annotations

import pytest

from bench.programs.hostile_programs import HONEST, HOSTILE
from bench.tasks.hostile import CHECK, _problem, _tests
from coordinator.tasks.checks.code_check import CodeChecker


def test_there_are_at_least_fifteen() -> None:
    assert len(HOSTILE) >= 15
    for program in HOSTILE.values():
        compile(program, "hostile", "exec")


@pytest.mark.parametrize("name", ["frame reader", "patched helpers", "forged verdict"])
def test_a_quick_one_steals_nothing_where_an_honest_one_passes(name: str) -> None:
    checker = CodeChecker(CHECK)
    tests = _tests(654321)[1]  # decided in a second sandbox
    assert checker.check(_problem(tests), HOSTILE[name]).reward == 0.0
    if name == "frame reader":
        assert checker.check(_problem(tests), HONEST.format(secret=654321)).reward == 1.0
