from __future__ import annotations

from tests.coordinator.core_world import settings


def test_slot_capacity_counts_the_running_batch() -> None:
    assert settings(prefetch_batches=2.5).slot_capacity(4) == 10
    assert settings().slot_capacity(0) == 0
