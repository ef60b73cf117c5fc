"""Test the study of growing fleets: what it measures, and that churn, size and a spot market show in it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rollcast.runtime.errors import ConfigError
from rollcast.sim.parallel import documents
from rollcast.sim.scale import ScalePoint, Spot, command, read_spot, simulate_scale

pytestmark = pytest.mark.sim


def point(peers: int, churn: float) -> ScalePoint:
    return simulate_scale(peers, churn, minutes=12.0, warm_up_minutes=6.0, seed=1, usd_per_peer_hour=0.5)


def test_a_fleet_keeps_its_learner_busy_within_the_limit_and_churn_costs_rollouts() -> None:
    calm, churned = point(16, 0.0), point(16, 64.0)
    assert calm.violations == churned.violations == 0
    assert calm.utilisation > 0.9
    assert 0 < calm.age_mean <= calm.age_max <= calm.staleness_limit
    assert calm.rollouts_per_second == pytest.approx(16 * 2 / 75 / 1.25, rel=0.2)
    assert churned.peers_mean < calm.peers_mean
    assert churned.rollouts_per_second < calm.rollouts_per_second
    assert calm.t_bcast_p95_s >= calm.t_bcast_s > 0
    assert calm.origin_copies >= 1.0
    assert calm.peers_mean == pytest.approx(16.0)
    assert calm.usd_per_kilo_rollout == pytest.approx(16 * 0.5 / 3600.0 / calm.rollouts_per_second * 1000.0)


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


def test_a_fleet_follows_the_record_of_a_spot_market() -> None:
    half_of_the_time = Spot("half", [(0.0, 1), (60.0, 8), (120.0, 4), (180.0, 8), (240.0, 4)])
    found = simulate_scale(16, 0.0, minutes=12.0, warm_up_minutes=6.0, seed=1, spot=half_of_the_time)
    assert found.violations == 0
    assert found.trace == "half"
    assert 9.0 < found.peers_mean < 15.0, "between the half and all of them"


@pytest.mark.slow  # a minute of processor time: fewer peers leave too few groups that come too late
def test_a_fleet_that_loses_machines_all_the_time_goes_on_forming_batches() -> None:
    found = simulate_scale(1000, 40.0, minutes=20.0, warm_up_minutes=10.0, seed=0)
    assert found.violations == 0
    assert found.utilisation > 0.8, "0.58 when the 8 oldest groups with an open slot kept all others from completion"


def test_a_record_is_read_and_what_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "market.csv"
    path.write_text("0,3\n60000,2\n60000,5\n")
    assert read_spot(path) == Spot("market", [(0.0, 3), (60.0, 5)])
    for text in ("", "0,3\n", "0,none\n60000,2\n", "0,0\n60000,0\n", "0\n1\n", "-1,2\n3,4\n"):
        path.write_text(text)
        with pytest.raises(ConfigError):
            read_spot(path)
    with pytest.raises(ConfigError, match="cannot read"):
        read_spot(tmp_path / "missing.csv")


def test_a_point_is_simulated_in_a_process_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "market.csv"
    path.write_text("0,3\n60000,3\n")
    asked = command(8, 4.0, minutes=12.0, warm_up_minutes=6.0, seed=1, spot=path, usd=1.0)
    (document,) = documents([asked], 1)
    shares: list[float] = []
    here = simulate_scale(
        8,
        4.0,
        minutes=12.0,
        warm_up_minutes=6.0,
        seed=1,
        spot=read_spot(path),
        usd_per_peer_hour=1.0,
        progress=shares.append,
    )
    assert 0.0 < shares[0] < 1 / 3 < shares[-1] < 1.0
    assert shares == sorted(shares)
    assert as_simulated(ScalePoint(**document)) == as_simulated(here)
    assert json.loads(json.dumps(here.to_json())) == here.to_json()


def test_a_point_may_be_simulated_with_compiled_cores() -> None:
    how = {"minutes": 12.0, "warm_up_minutes": 6.0, "seed": 1, "spot": None, "usd": 1.0}
    interpreted, compiled = (command(8, 4.0, **how, with_compiled=one) for one in (False, True))
    assert interpreted[:3] == ["-P", "-m", "rollcast.sim.scale"]
    assert compiled == ["-P", "-m", "rollcast.sim.compiled", "run", *interpreted[2:]]
