from __future__ import annotations

import math
from dataclasses import replace

import pytest

from rollcast.sim.kernel.network import Line
from rollcast.sim.scenario import priced, realistic, standard
from rollcast.sim.settings import RESUME_S, EngineSettings


@pytest.mark.parametrize("seed", range(0, 400, 7))
def test_thirty_seconds_are_enough_for_the_standard_mix(seed: int) -> None:
    """The standard mix must never need more, because the mutation gate finds stalled runs by this limit."""
    for fleet in (standard(seed), priced(seed)):
        assert fleet.resume_limit_s < RESUME_S
        assert fleet.calm_limit_s == RESUME_S


def test_a_step_that_starts_without_rollouts_takes_the_sum_of_its_parts() -> None:
    fleet = realistic(10)
    noticed_s, checkpoint_s, broadcast_s, load_s, verify_s, train_s = 60.0, 10.0, 32.0, 5.0, 0.5, 55.0
    two_rounds_s = (64 + 16) * 60.0 / 16  # a group of four, two at once
    parts_s = (noticed_s, checkpoint_s, broadcast_s, load_s, two_rounds_s, verify_s, train_s)
    assert fleet.resume_limit_s == pytest.approx(math.fsum(parts_s))
    assert fleet.calm_limit_s == pytest.approx(fleet.resume_limit_s + 10 * train_s + checkpoint_s)


def test_the_slowest_engine_and_the_slowest_uplink_count() -> None:
    fleet = realistic(10)
    slow = replace(fleet, engines=(EngineSettings(2.0, 4), EngineSettings(0.5, 2)))
    assert slow.resume_limit_s - fleet.resume_limit_s == pytest.approx(300.0)
    far = replace(fleet, lines=(Line(), Line(up_bytes_s=1.25e6)))
    assert far.resume_limit_s - fleet.resume_limit_s == pytest.approx(288.0)
