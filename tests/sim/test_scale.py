"""Test the study of growing fleets: what it measures, and that churn and size show in it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rollcast.sim.scale import ScalePoint, simulate_scale

pytestmark = pytest.mark.sim


def point(peers: int, churn: float) -> ScalePoint:
    return simulate_scale(peers, churn, minutes=12.0, warm_up_minutes=6.0, seed=1)


def test_a_fleet_keeps_its_learner_busy_within_the_limit_and_churn_costs_rollouts() -> None:
    calm, churned = point(16, 0.0), point(16, 64.0)
    assert calm.violations == churned.violations == 0
    assert calm.utilisation > 0.9
    assert 0 < calm.age_mean <= calm.age_max <= calm.staleness_limit
    assert calm.rollouts_per_second == pytest.approx(16 * 2 / 75 / 1.25, rel=0.2)
    assert churned.peer_hours_per_kilo_rollout > calm.peer_hours_per_kilo_rollout
    assert calm.t_bcast_p95_s >= calm.t_bcast_s > 0


def test_the_core_is_timed_and_everything_else_repeats() -> None:
    first, second = point(8, 4.0), point(8, 4.0)
    assert 0 < first.core_share < 0.5
    assert first.core_block_ms_max > 0
    assert first.core_ms_per_rollout == pytest.approx(1e3 * first.core_share / first.rollouts_per_second)
    assert as_simulated(first) == as_simulated(second)


def as_simulated(found: ScalePoint) -> ScalePoint:
    """Return the point without the figures of this machine."""
    return replace(
        found, core_share=0.0, core_ms_per_rollout=0.0, core_block_ms_max=0.0, core_block_event="", realtime_factor=0.0
    )


@pytest.mark.parametrize(("peers", "minutes", "churn"), [(0, 1.0, 1.0), (4, 0.0, 1.0), (4, 1.0, -1.0)])
def test_a_fleet_without_peers_or_time_is_refused(peers: int, minutes: float, churn: float) -> None:
    with pytest.raises(ValueError, match="at least one peer"):
        simulate_scale(peers, churn, minutes=minutes, warm_up_minutes=1.0, seed=0)
