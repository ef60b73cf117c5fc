from __future__ import annotations

import pytest

from bench.capacity.step_times import step_times, t_train_s


def test_steps_agree_with_their_tokens() -> None:
    assert len(step_times()) == 53
    for one in step_times():
        assert one.step_s > 0
        assert one.tokens_per_second > 0
        assert one.hardware in ("a6000", "h100", "h200", "b200")
        assert one.lora_rank in (None, 16)


def test_a_step_is_its_tokens_over_the_learners_pace() -> None:
    assert t_train_s(512, 2000.0, 10_240.0) == pytest.approx(100.0)
