from __future__ import annotations

from coordinator.metrics.families import staleness_families
from tests.coordinator.sample_status import sample_status


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
