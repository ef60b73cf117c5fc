from __future__ import annotations

from itertools import pairwise

from bench.capacity.trace_availability import spot_instances


def test_the_trace_goes_forward_and_has_one_count_a_moment() -> None:
    trace = spot_instances()
    assert all(before[0] < after[0] for before, after in pairwise(trace))
    assert trace[-1][0] == 40_920.0
    assert all(0 <= alive <= 40 for _, alive in trace)
