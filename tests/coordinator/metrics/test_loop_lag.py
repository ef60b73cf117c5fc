from __future__ import annotations

from coordinator.metrics.metrics import LoopLag


def test_uploads_wait_from_a_late_tick_until_the_loop_is_well_in_time() -> None:
    lag, seen = LoopLag(), []
    for late_s in (0.1, 0.9, 1.0, 0.5, 0.3, 0.2, 0.5):
        lag.observe(late_s)
        seen.append(lag.sheds)
    assert seen == [False, False, True, True, True, False, False]
