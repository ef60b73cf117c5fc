"""Test that a late coordinator, or a member with a late event loop, makes nobody silent."""

from __future__ import annotations

from coordinator.core.members.awake_clock import LAG_PATIENCE_S_MAX, AwakeClock, longest_gap_s, patience_s


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
    assert patience_s(5.0, 0.0, 1.0) == 5.0
    assert patience_s(5.0, 2.0, 1.0) == 13.0
    assert patience_s(5.0, 1e9, 1.0) == 5.0 + LAG_PATIENCE_S_MAX


def test_a_member_whose_messages_came_late_is_waited_for() -> None:
    assert patience_s(5.0, 0.0, 4.0) == 12.0
    assert patience_s(5.0, 1.0, 4.0) == 12.0
    assert patience_s(5.0, 0.0, 1e9) == 5.0 + LAG_PATIENCE_S_MAX


def test_the_longest_gap_counts_for_less_as_time_passes() -> None:
    assert longest_gap_s(1.0, 4.0) == 4.0
    gap_s = 4.0
    for _ in range(60):
        gap_s = longest_gap_s(gap_s, 1.0)
    assert abs(gap_s - 2.0) < 1e-9
    assert longest_gap_s(gap_s, 1.9) > 1.9
