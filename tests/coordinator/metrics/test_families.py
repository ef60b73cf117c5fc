"""Test the Prometheus families of the status: staleness, reach, and their labels."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from coordinator.core.events.reach_events import PunchEnded, PunchRequested
from coordinator.core.traversal.status import ReachCounts, build_reach_status
from coordinator.metrics.families import activation_families, reach_families, staleness_families
from rollcast.wire.ids import PeerId
from tests.coordinator.core.traversal.world import ReachWorld
from tests.coordinator.sample_status import sample_status

STATUS: dict[str, Any] = {
    "mode": "act",
    "on": 2,
    "standby": 1,
    "usd_per_hour": 0.9,
    "switches": 3,
    "plan": None,
    "rate_correction": 0.8,
    "t_bcast_correction": 1.0,
    "t_train_correction": 1.0,
}

PLAN = {
    "usd_per_hour": 1.0,
    "lp_bound_usd_per_hour": 0.9,
    "rate_rollouts_per_second": 2.0,
    "rate_needed_rollouts_per_second": 1.8,
}


def values(activation: dict[str, Any] | None) -> dict[str, float]:
    found = {}
    for family in activation_families(activation):
        for sample in family.samples:
            found[sample.name + "".join(sample.labels.values())] = sample.value
    return found


def test_active_peers_and_their_cost_are_exported() -> None:
    assert values(STATUS) == {
        "rollcast_peers_on": 2.0,
        "rollcast_peers_standby": 1.0,
        "rollcast_peers_usd_per_hour": 0.9,
        "rollcast_activation_switches": 3.0,
        "rollcast_correction_ratiorate": 0.8,
        "rollcast_correction_ratiot_bcast": 1.0,
        "rollcast_correction_ratiot_train": 1.0,
    }
    assert values(STATUS | {"plan": PLAN})["rollcast_plan_lp_bound_usd_per_hour"] == 0.9


def test_mode_off_exports_no_activation() -> None:
    assert values(STATUS | {"mode": "off"}) == values(None) == {}


def test_budget_is_exported_in_every_mode() -> None:
    limited = STATUS | {"mode": "off", "usd_per_hour_max": 2.0, "usd_total_max": None}
    assert values(limited) == {"rollcast_budget_usd_per_hour": 2.0}


def test_every_sum_has_a_series() -> None:
    here = ReachWorld()
    for name in ("a", "b"):
        here.say(name, "port-restricted")
    samples = _samples(here)
    assert samples["rollcast_members_reached", "hole-punchable"] == 2
    assert samples["rollcast_members_reached", "dialable"] == 1
    assert samples["rollcast_links", "LAN"] == 0
    assert samples["rollcast_punches_total", "opened"] == 0
    assert ("rollcast_punch_seconds_mean", "") not in samples
    punch_id = here.messages_after(PunchRequested(PeerId("a"), PeerId("b")))["a"].punch.punch_id
    here.handle(PunchEnded(PeerId("a"), punch_id, True, 0.25))
    samples = _samples(here)
    assert samples["rollcast_punches_total", "opened"] == 1
    assert samples["rollcast_punch_seconds_mean", ""] == 0.25
    assert samples["rollcast_pairs_left_alone", ""] == 0
    assert samples["rollcast_peer_records", ""] == 0


def _samples(here: ReachWorld) -> dict[tuple[str, str], float]:
    state, counts = here.core.state, ReachCounts()
    counts.add(state, tuple(state.members))
    found = reach_families(asdict(build_reach_status(state, counts)))
    return {(one.name, "".join(one.labels.values())): one.value for family in found for one in family.samples}


def test_limits_late_rollouts_and_parts_of_ages() -> None:
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in staleness_families(sample_status()["staleness"])
        for sample in family.samples
    }
    assert samples[("rollcast_staleness_gate_steps",)] == 4.0
    assert samples[("rollcast_publish_every_steps",)] == 1.0
    assert samples[("rollcast_late_rollouts_corrected_total",)] == 0.0
    assert samples[("rollcast_age_part_seconds_bucket", "queue", "1.0")] == 9.0
    assert samples[("rollcast_age_part_seconds_sum", "return")] == 7.5
    assert samples[("rollcast_age_split_rollouts_total", "no")] == 272.0


def test_without_figures_there_are_only_counters() -> None:
    assert [family.type for family in staleness_families({})] == ["counter"] * 4
