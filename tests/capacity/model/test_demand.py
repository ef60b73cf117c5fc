"""Test what a run needs of its workers, and the assumptions used where no measurement exists."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from capacity.model.assumptions import Assumption
from capacity.model.demand import Demand
from capacity.model.staleness import staleness_needed

RUN = Demand(
    rollouts_per_step=512,
    t_train_s=60.0,
    staleness_limit=4,
    update_bytes=16.4e9,
    learner_upload_bytes_per_second=125e6,
)


def test_the_budget_is_what_the_limit_leaves_after_publishing_scoring_and_loading() -> None:
    assert RUN.budget_s == 180.0
    assert replace(RUN, publish_every_steps=3).budget_s == 60.0
    assert replace(RUN, t_score_s=5.0, t_load_s=7.0).budget_s == 168.0
    assert replace(RUN, staleness_limit=1).budget_s == 0.0


@given(st.integers(1, 16), st.integers(1, 4), st.floats(0, 1))
def test_what_fits_the_budget_needs_no_more_than_the_limit(limit: int, kappa: int, share: float) -> None:
    demand = replace(RUN, staleness_limit=limit + kappa, publish_every_steps=kappa)
    t_bcast_s = share * demand.budget_s
    needed = staleness_needed(
        t_bcast_s=t_bcast_s,
        t_gen_p90_s=demand.budget_s - t_bcast_s - 1e-6,
        t_train_s=demand.t_train_s,
        publish_every_steps=kappa,
    )
    assert needed <= demand.staleness_limit


def test_what_the_user_decided_is_exact() -> None:
    assert Assumption("staleness limit", 4, "learner steps", "given").relative_uncertainty == 0.0
