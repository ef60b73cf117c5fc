"""Test that a late coordinator, or a member with a late event loop, makes nobody silent."""

from __future__ import annotations

from coordinator.core.members.awake_clock import LAG_PATIENCE_S_MAX, AwakeClock, patience_s


def test_the_clock_stands_still_while_ticks_do_not_come() -> None:
    clock = AwakeClock(tick_s=0.5)
    for now in (0.0, 0.5, 1.2):
        clock.tick(now)
    assert clock.at(1.2) == 1.2, "a tick may be a little late"
    clock.tick(9.2)  # 8 s later; one second is usual at most
    assert clock.at(9.2) == 2.2
    assert clock.at(9.7) == 2.7


def test_without_an_interval_late_ticks_do_not_matter() -> None:
    clock = AwakeClock(tick_s=None)
    clock.tick(0.0)
    clock.tick(100.0)
    assert clock.at(100.0) == 100.0


def test_a_member_cannot_claim_any_patience() -> None:
    assert patience_s(5.0, 0.0) == 5.0
    assert patience_s(5.0, 2.0) == 13.0
    assert patience_s(5.0, 1e9) == 5.0 + LAG_PATIENCE_S_MAX
