from __future__ import annotations

import pytest

from coordinator.ledger.retention import GROUPS_MAX, Retention, horizon_step, next_group_count, segments_to_delete
from rollcast.wire.ids import Step

RETENTION = Retention(margin_steps=10)


@pytest.mark.parametrize(
    ("checkpoint", "recorded", "horizon"),
    [(None, 100, 0), (0, 100, 0), (13, 100, 0), (50, 100, 36), (100, 100, 86), (200, 100, 86)],
)
def test_what_a_learner_may_still_ask_for_is_kept(checkpoint: int | None, recorded: int, horizon: int) -> None:
    step = None if checkpoint is None else Step(checkpoint)
    assert (
        horizon_step(RETENTION, oldest_checkpoint_step=step, recorded_batches=recorded, oldest_trained_age=4) == horizon
    )


def test_transactions_find_their_size() -> None:
    assert next_group_count(16, 0.030, aim_s=0.025) == 8
    assert next_group_count(1, 9.0, aim_s=0.025) == 1
    assert next_group_count(16, 0.020, aim_s=0.025) == 16
    assert next_group_count(16, 0.001, aim_s=0.025) == 32
    assert next_group_count(GROUPS_MAX, 0.001, aim_s=0.025) == GROUPS_MAX


def test_the_oldest_segments_go_first() -> None:
    assert segments_to_delete([5, 5, 5], 15) == 0
    assert segments_to_delete([5, 5, 5], 14) == 1
    assert segments_to_delete([5, 5, 5], 4) == 3
    assert segments_to_delete([], 0) == 0
