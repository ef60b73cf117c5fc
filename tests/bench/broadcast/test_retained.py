from __future__ import annotations

from bench.broadcast.retained import learner_written_ratio


def test_a_learner_writes_its_deltas_and_a_state_now_and_then() -> None:
    assert 1.0 < learner_written_ratio(1 << 20, share=0.5) < 4.0
