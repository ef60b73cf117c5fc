from __future__ import annotations

from dataclasses import replace

import pytest

from capacity.catalogue.models import model_named
from capacity.inputs.pool_checks import check_pool
from capacity.inputs.pool_columns import Value
from capacity.inputs.pool_files import Row
from capacity.inputs.pool_rows import PoolRow
from capacity.inputs.pool_speeds import Rollouts, workers_of
from capacity.model.lengths import LengthDistribution

LENGTHS = LengthDistribution.from_lengths([100] * 8 + [300] * 2)
ROLLOUTS = Rollouts(
    model=model_named("qwen3-4b"), lengths=LENGTHS, prompt_tokens=100, efficiency=0.7, concurrencies=(1, 8, 64)
)


def rows(**changes: Value) -> tuple[PoolRow, ...]:
    values: dict[str, Value] = {
        "worker_id": "a",
        "usd_per_hour": 1.0,
        "upload_mbit_per_second": 80,
        "download_mbit_per_second": 160,
        "egress_usd_per_gb": 0.0,
        **changes,
    }
    return check_pool([Row("line 2", values)]).taken


def test_measured_rollouts_follow_littles_law() -> None:
    pool = workers_of(rows(rollouts_per_second=2.0, concurrency=16), ROLLOUTS)
    (speed,) = pool.workers[0].speeds
    assert (speed.rollouts_per_second, speed.t_gen_mean_s) == (2.0, 8.0)
    assert speed.t_gen_p90_s == pytest.approx(8.0 * 300 / 140, rel=0.01)
    assert pool.measured == 1


def test_measured_tokens_become_rollouts_by_the_mean_length() -> None:
    (speed,) = workers_of(rows(tokens_per_second=280, concurrency=4, t_gen_p90_s=9), ROLLOUTS).workers[0].speeds
    assert (speed.rollouts_per_second, speed.t_gen_mean_s, speed.t_gen_p90_s) == (2.0, 2.0, 9.0)


def test_hardware_is_reckoned_and_more_of_it_makes_more() -> None:
    one, four = (workers_of(rows(hardware="rtx-4090", gpus=gpus), ROLLOUTS).workers[0] for gpus in (1, 4))
    assert [speed.concurrency for speed in one.speeds] == [1, 8, 64]
    for alone, together in zip(one.speeds, four.speeds, strict=True):
        assert together.rollouts_per_second == pytest.approx(4 * alone.rollouts_per_second)
        assert together.t_gen_p90_s == alone.t_gen_p90_s
    assert (one.hardware, four.hardware) == ("rtx-4090", "4 x rtx-4090")
    assert (one.upload_bytes_per_second, one.download_bytes_per_second) == (10e6, 20e6)


def test_without_a_timed_engine_the_hardware_has_the_catalogues_efficiency() -> None:
    def rate(rollouts: Rollouts) -> float:
        return workers_of(rows(hardware="l40s"), rollouts).workers[0].speeds[0].rollouts_per_second

    assert rate(replace(ROLLOUTS, efficiency=None)) / rate(ROLLOUTS) == pytest.approx(0.852 / 0.7, rel=0.001)


def test_workers_that_are_alike_share_their_speeds() -> None:
    first, second = workers_of(rows(hardware="l4", count=2), ROLLOUTS).workers
    assert first.speeds is second.speeds
    assert (first.worker_id, second.worker_id) == ("a-1", "a-2")


@pytest.mark.parametrize(
    ("hardware", "model", "reason"),
    [("abacus", "qwen3-4b", "unknown_hardware"), ("l4", "llama-3.3-70b", "does_not_fit"), ("l4", "", "missing")],
)
def test_hardware_that_cannot_make_rollouts_is_skipped(hardware: str, model: str, reason: str) -> None:
    rollouts = Rollouts(
        model=model_named(model), lengths=LENGTHS, prompt_tokens=100, efficiency=0.7, concurrencies=(1,)
    )
    pool = workers_of(rows(hardware=hardware), rollouts)
    assert pool.workers == ()
    assert [one.reason for one in pool.skipped] == [reason]
