from __future__ import annotations

import pytest

from capacity.model.demand import rollout_rate_needed


def test_workers_that_receive_in_the_background_match_consumption() -> None:
    assert rollout_rate_needed(rollouts_per_step=512, t_train_s=64.0, t_bcast_s=1000.0) == 8.0


def test_workers_that_pause_make_up_for_it_in_the_rest_of_the_step() -> None:
    rate = rollout_rate_needed(
        rollouts_per_step=512, t_train_s=60.0, t_bcast_s=56.0, publish_every_steps=2, pauses_while_receiving=True
    )
    assert rate == 16.0


def test_no_rate_is_enough_when_there_is_only_time_to_receive() -> None:
    for t_bcast_s in (60.0, 61.0):
        assert (
            rollout_rate_needed(rollouts_per_step=512, t_train_s=60.0, t_bcast_s=t_bcast_s, pauses_while_receiving=True)
            is None
        )


@pytest.mark.parametrize(
    "wrong", [{"rollouts_per_step": 0}, {"t_train_s": 0.0}, {"t_bcast_s": -1.0}, {"publish_every_steps": 0}]
)
def test_nonsense_is_refused(wrong: dict[str, float]) -> None:
    values = {"rollouts_per_step": 1, "t_train_s": 1.0}
    with pytest.raises(ValueError, match="at least 1"):
        rollout_rate_needed(**{**values, **wrong})  # type: ignore[arg-type]
