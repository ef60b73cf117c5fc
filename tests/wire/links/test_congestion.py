"""Test when a link changes its congestion control; the figures are those of a kernel."""

from __future__ import annotations

from rollcast.wire.links.congestion import CongestionChoice, PathFigures, UplinkChoices

LEAST_S = 0.08


def looks(choice: CongestionChoice, lost: float, rtt_s: float, seconds: float = 30.0, start_s: float = 0.0) -> float:
    """Send 400 segments a second, of which a share is lost, and return when the choice changed; 0 if it never did."""
    for number in range(int(4 * seconds)):
        now = start_s + number / 4
        sent = 400 * (now + 0.25)
        if choice.look(PathFigures(int(sent), int(sent * lost), rtt_s, LEAST_S), now):
            return now
    return 0.0


def test_a_path_that_loses_packets_without_a_queue_gets_bbr_within_seconds() -> None:
    choice = CongestionChoice()
    assert 0.0 < looks(choice, lost=0.01, rtt_s=LEAST_S + 0.004) <= 2.0
    assert choice.bbr
    assert 0.005 < choice.lost_share < 0.02


def test_losses_of_full_queues_and_few_losses_change_nothing() -> None:
    for lost, rtt_s in ((0.01, LEAST_S + 0.05), (0.001, LEAST_S), (0.0, LEAST_S)):
        choice = CongestionChoice()
        assert looks(choice, lost, rtt_s) == 0.0
        assert not choice.bbr


def test_a_queue_of_a_tenth_of_the_path_counts() -> None:
    choice = CongestionChoice()
    assert looks(choice, lost=0.01, rtt_s=LEAST_S + 0.025) == 0.0


def test_one_burst_of_losses_changes_nothing() -> None:
    """The end of slow start overflows a queue before the round trips show it."""
    choice = CongestionChoice()
    for number in range(40):
        lost = 0 if number < 2 else 40
        assert not choice.look(PathFigures(300 * number, lost, LEAST_S, LEAST_S), number / 4)
    assert not choice.bbr


def test_where_most_links_of_an_uplink_use_bbr_a_queue_counts_no_more() -> None:
    uplink = UplinkChoices()
    first, second, third, clean = (CongestionChoice(uplink) for _ in range(4))
    assert looks(first, lost=0.01, rtt_s=LEAST_S + 0.05) == 0.0, "no other has changed"
    for one in (second, third):
        assert looks(one, lost=0.01, rtt_s=LEAST_S) > 0.0
    assert looks(clean, lost=0.0, rtt_s=LEAST_S + 0.05) == 0.0
    assert not uplink.mostly_bbr, "two of four"
    del clean
    assert uplink.mostly_bbr
    assert looks(first, lost=0.01, rtt_s=LEAST_S + 0.05, start_s=30.0) > 0.0


def test_the_share_falls_again_when_the_path_is_clean() -> None:
    choice = CongestionChoice()
    looks(choice, lost=0.01, rtt_s=LEAST_S)
    sent, lost = 1_000, 10
    for number in range(100):
        choice.look(PathFigures(sent + 100 * number, lost, LEAST_S, LEAST_S), 100.0 + number / 4)
    assert choice.lost_share < 0.002


def test_a_queue_counts_by_its_mean_and_by_the_length_of_the_path() -> None:
    far = CongestionChoice()
    for number in range(20):
        far.look(PathFigures(100 * number, number, 0.325, 0.3), number / 4)
    assert far.bbr, "25 ms are little on a path of 300 ms"
    near = CongestionChoice()
    for number in range(20):
        near.look(PathFigures(100 * number, number, 0.01 + 0.04 * (number % 2), 0.01), number / 4)
    assert not near.bbr, "a queue that fills and drains"
    within = CongestionChoice()
    for number in range(20):
        within.look(PathFigures(100 * number, number, 0.001, 0.001), number / 4)
    assert not within.bbr, "a path within a building"


def test_the_systems_control_gets_another_chance_after_ten_minutes() -> None:
    choice = CongestionChoice()
    looks(choice, lost=0.01, rtt_s=LEAST_S)
    assert looks(choice, lost=0.01, rtt_s=LEAST_S, start_s=700.0)
    assert not choice.bbr
