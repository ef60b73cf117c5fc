from __future__ import annotations

import pytest

from capacity.catalogue.gpus import gpu_named, gpus


def test_all_figures_are_of_the_right_size() -> None:
    for gpu in gpus().values():
        assert 2**34 <= gpu.memory_bytes <= 2**39
        assert 2e11 < gpu.bandwidth_bytes_per_second < 1e13
        assert 5e13 < gpu.flops_per_second < 3e15


@pytest.mark.parametrize(
    ("name", "memory_gib", "found"),
    [
        ("rtx-4090", None, "rtx-4090"),
        ("RTX4090", 24, "rtx-4090"),
        ("H100", 80, "h100-pcie"),  # the slowest of that name
        ("A100", 80, "a100-pcie"),
        ("A100", 40, None),
        (" H100-SXM ", None, "h100-sxm"),
        ("H200", 141, "h200-sxm"),
        ("abacus", None, None),
        ("", None, None),
    ],
)
def test_others_names_lead_to_ours(name: str, memory_gib: float | None, found: str | None) -> None:
    gpu = gpu_named(name, memory_gib)
    assert (gpu.name if gpu else None) == found
