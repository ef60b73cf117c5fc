from __future__ import annotations

from rollcast.policy.sizing.hardware import CATALOGUE, GIB


def test_names_are_unique_and_some_memory_is_left_to_the_runtime() -> None:
    assert len({one.name for one in CATALOGUE}) == len(CATALOGUE)
    assert {one.kind for one in CATALOGUE} == {"consumer", "datacentre", "tpu"}
    assert all(0 < one.usable_bytes < one.memory_gib * GIB and one.devices_max >= 1 for one in CATALOGUE)
