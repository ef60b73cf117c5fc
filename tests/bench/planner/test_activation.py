from __future__ import annotations

import pytest

from bench.planner.activation import DWELL_S, STEP_S, Step, Switch, _simulated, judged


def test_settling_counts_from_the_event_or_from_the_end_of_the_dwell() -> None:
    steps = [Step(100.0 + STEP_S * number, STEP_S, 0.9 * STEP_S) for number in range(1, 20)]
    early = judged([Switch(10.0, "a", True), Switch(100.0 + STEP_S, "b", True)], [100.0], steps)
    assert early["settle_steps"] == 1.0
    assert early["utilisation_after"] == pytest.approx(0.9)
    dwelling = judged([Switch(98.0, "a", True), Switch(98.0 + DWELL_S + 1.0, "a", False)], [100.0], steps)
    assert dwelling["settle_steps"] == pytest.approx(1.0 / STEP_S)


def test_a_switch_taken_back_after_one_event_is_a_flip() -> None:
    switches = [Switch(1.0, "a", False), Switch(11.0, "a", True), Switch(12.0, "a", False), Switch(31.0, "a", True)]
    assert judged(switches, [10.0, 30.0], [])["flips"] == 1


@pytest.mark.sim
def test_the_simulated_loop_settles_without_flapping() -> None:
    figures = _simulated()
    assert figures["settle_steps"] <= 2.0
    assert figures["flips"] == 0
    assert figures["violations"] == 0
    assert figures["utilisation_after"] >= 0.95
