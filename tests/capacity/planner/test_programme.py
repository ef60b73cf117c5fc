from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.model.broadcast_bound import broadcast_seconds
from capacity.planner.columns import columns_of
from capacity.planner.plans import Split
from capacity.planner.programme import copies_within, origin_feeds, programme_of
from tests.capacity.planner.plan_strategies import TOPOLOGIES, numbers
from tests.capacity.planner.test_planner import demand, worker


@given(
    st.sampled_from(TOPOLOGIES),
    st.lists(numbers(1e5, 1e8), min_size=1, max_size=6),
    numbers(1e6, 2e8),
    numbers(1.0, 1000.0),
)
def test_copies_are_the_broadcast_bound_of_every_shape(
    topology: object, uploads: list[float], source: float, tau_s: float
) -> None:
    """n copies are sent within tau exactly where the bound is at most tau; apart from ties."""
    wanted = demand(topology=topology, learner_upload_bytes_per_second=source)
    room = origin_feeds(wanted, tau_s) + copies_within(wanted, np.array(uploads), tau_s).sum()
    enough = room >= len(uploads) and origin_feeds(wanted, tau_s) >= 1
    far = np.full(len(uploads), 1e12)
    bound_s = broadcast_seconds(wanted.update_bytes, source, np.array(uploads), far, wanted.topology)
    if not math.isclose(bound_s, tau_s, rel_tol=1e-6):
        assert enough == (bound_s < tau_s)


def test_columns_of_a_split() -> None:
    workers = [
        worker(0, preemptions_per_hour=1.0, lost_per_preemption_s=360.0),
        worker(1, download_bytes_per_second=1e6),
        worker(2, pin="on", active=True),
        worker(3, pin="off"),
    ]
    wanted = demand(t_swap_s=6.0)
    programme = programme_of(wanted, columns_of(workers), Split(20.0, 100.0), incumbent_discount=0.25)
    assert programme.copy_bytes_per_second == pytest.approx(1.06e7)
    assert programme.useful.tolist() == pytest.approx([0.81, 0.9, 0.9, 0.9])
    assert programme.eligible.tolist() == [True, False, True, True]
    assert programme.lower.tolist() == [0, 0, 1, 0]
    assert programme.upper.tolist() == [1, 0, 1, 0]
    assert programme.cost.tolist() == [1.0, 1.0, 0.75, 1.0]
    assert programme.variance.tolist() == pytest.approx([0.81 * 0.09, 0, 0, 0])
    assert programme.rate_bought == 5.0


def test_workers_that_pause_need_more_rate() -> None:
    wanted = demand(pauses_while_receiving=True)
    columns = columns_of([worker(0)])
    assert programme_of(wanted, columns, Split(20.0, 30.0)).rate_bought == 10.0
    assert programme_of(wanted, columns, Split(20.0, 60.0)).rate_needed is None
