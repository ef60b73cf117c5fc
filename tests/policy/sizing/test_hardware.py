from __future__ import annotations

from rollcast.policy.sizing.hardware import CATALOGUE, GIB, peak_flops


def test_names_are_unique_and_some_memory_is_left_to_the_runtime() -> None:
    assert len({one.name for one in CATALOGUE}) == len(CATALOGUE)
    assert {one.kind for one in CATALOGUE} == {"consumer", "datacentre", "tpu"}
    assert all(0 < one.usable_bytes < one.memory_gib * GIB and one.devices_max >= 1 for one in CATALOGUE)


def test_peaks_are_found_by_the_names_that_jax_gives() -> None:
    assert peak_flops("NVIDIA H100 80GB HBM3") == 989e12
    assert peak_flops("TPU v5 lite") == 197e12
    assert peak_flops("TPU v5") == 459e12, "a v5p"
    assert peak_flops("cpu") is None
