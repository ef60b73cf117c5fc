from __future__ import annotations

from dataclasses import replace

import pytest

from capacity.model.demand import Conduct, Demand, publish_seconds
from capacity.model.useful_rate import IN_TIME_SHARES, options_of, share_left_by_swaps, swap_s
from capacity.model.workers import Speed

DEMAND = Demand(
    rollouts_per_step=64,
    t_train_s=60.0,
    staleness_limit=4,
    update_bytes=1e8,
    learner_upload_bytes_per_second=1e8,
    t_swap_s=1.0,
    length_quantiles=tuple([500.0] * 90 + [3000.0] * 10),
)
SPEED = Speed(8, 8 / 30.0, 120.0, 30.0, t_reread_s=2.0)


def with_swap(mode: str, **changes: object) -> Demand:
    return replace(DEMAND, conduct=Conduct(at_version_swap=mode, **changes))  # type: ignore[arg-type]


def test_finish_drains_while_continue_reads_prefixes_again_and_keep_does_neither() -> None:
    shares = {mode: share_left_by_swaps(with_swap(mode), SPEED) for mode in ("finish", "continue", "keep")}
    assert shares["continue"] == pytest.approx(1 - 3.0 / 60.0)
    assert shares["keep"] == pytest.approx(1 - 1.0 / 60.0)
    assert shares["finish"] < 0.6, "the longest of eight, 120 s, outlasts the 60 s between two versions"
    assert swap_s(with_swap("finish"), SPEED) == 1.0


def test_finish_costs_little_where_versions_are_far_apart() -> None:
    rare = replace(with_swap("finish"), publish_every_steps=40)
    assert 0.9 < share_left_by_swaps(rare, SPEED) < 1.0


def test_a_larger_group_takes_longer_and_the_share_in_time_is_what_is_paid() -> None:
    def options(samples: int) -> list[tuple[float, float]]:
        return options_of(with_swap("keep", samples_per_group=samples), SPEED)

    single, group = options(1), options(16)
    assert single[0][1] == pytest.approx(120.0, rel=0.01), "the 90th of 100 equal shares is already a long one"
    assert group[0][1] == pytest.approx(120.0, rel=0.01)
    assert options_of(replace(with_swap("keep"), length_quantiles=()), SPEED)[0][1] == SPEED.t_gen_p90_s
    assert [rate / group[-1][0] for rate, _ in group] == pytest.approx(IN_TIME_SHARES)
    shorter = replace(with_swap("keep"), length_quantiles=tuple([500.0] * 97 + [3000.0] * 3))
    assert (
        options_of(shorter, SPEED)[0][1]
        < options_of(replace(shorter, conduct=Conduct(samples_per_group=16)), SPEED)[0][1]
    )


def test_publishing_and_the_time_between_versions_bound_a_broadcast() -> None:
    assert publish_seconds(1e8, 1e8) == pytest.approx(2.1)
    wanted = replace(DEMAND, conduct=Conduct(t_publish_s=10.0))
    assert wanted.budget_s == 170.0
    assert wanted.broadcast_s(20.0) == 60.0, "a longer one would share its links with the next"
    assert wanted.broadcast_s(150.0) == 20.0
