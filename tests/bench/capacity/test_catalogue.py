"""Test the tables of the catalogue that only benchmarks read: region links, spot availability."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from bench.capacity.region_links import ten_regions
from bench.capacity.trace_availability import spot_instances


def test_ten_regions_are_alike_both_ways() -> None:
    matrix = ten_regions()
    assert len(matrix.regions) == 10
    assert np.array_equal(matrix.bytes_per_second, matrix.bytes_per_second.T)
    assert np.isinf(np.diag(matrix.bytes_per_second)).all()
    a, b = matrix.regions.index("Oregon"), matrix.regions.index("Virginia")
    assert (matrix.bytes_per_second[a, b], matrix.delay_s[a, b]) == (0.79e9 / 8, 0.067)


@pytest.mark.parametrize(("name", "hours", "most"), [("p3", 11.37, 32), ("g4dn", 10.63, 24), ("gcp-v100", 24.17, 80),
                                                   ("gcp-a100", 27.02, 64)])  # fmt: skip
def test_records_go_forward_and_have_one_count_a_moment(name: str, hours: float, most: int) -> None:
    trace = spot_instances(name)
    assert all(before[0] < after[0] for before, after in pairwise(trace))
    assert (trace[0][0], trace[-1][0] / 3600.0) == (0.0, pytest.approx(hours, abs=0.01))
    assert max(alive for _, alive in trace) == most
    assert min(alive for _, alive in trace) >= 0
