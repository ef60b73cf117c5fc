"""Test that churn undoes each of its faults, and never makes too many at once."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from bench.longrun.churn import Churn

MOVING, STAYING = (1, 2, 3, 4), (5, 6, 7, 8)
PUTS_RIGHT = {"start": "kill", "join": "leave", "thaw": "freeze", "coordinator_starts": "coordinator_dies"}


def churn(seed: int, every_s: float = 5.0) -> Churn:
    return Churn(Random(seed), every_s, MOVING, STAYING)


@given(st.integers(0, 1000))
def test_every_fault_is_undone_and_steady_peers_are_never_killed(seed: int) -> None:
    drawn, wrong = churn(seed), dict[int, str]()
    for now_s in range(600):
        for act in drawn.due(float(now_s)):
            if act.what in PUTS_RIGHT:
                assert wrong.pop(act.node) == PUTS_RIGHT[act.what]
            elif act.what != "libp2p_dies":
                assert act.node not in wrong
                assert not (act.what in ("kill", "leave") and act.node in STAYING)
                assert act.what != "coordinator_dies" or (act.node == 0 and not wrong)
                wrong[act.node] = act.what
            assert len(wrong) <= drawn.at_once
            assert 0 not in wrong or len(wrong) == 1, "who starts now could not join"
        assert drawn.disturbed == set(wrong)
    for act in drawn.calm():
        assert wrong.pop(act.node) == PUTS_RIGHT[act.what]
    assert not wrong
    assert drawn.disturbed == frozenset()


def test_every_fault_happens_within_the_run() -> None:
    drawn = churn(3)
    for now_s in range(3600):
        drawn.due(float(now_s))
    assert set(drawn.done) == {"kill", "leave", "freeze", "libp2p_dies", "coordinator_dies", *PUTS_RIGHT}


def test_the_same_seed_gives_the_same_faults() -> None:
    first, second = churn(5), churn(5)
    assert [first.due(float(at_s)) for at_s in range(300)] == [second.due(float(at_s)) for at_s in range(300)]


def test_no_fault_happens_for_a_while_after_a_coordinator_restart() -> None:
    drawn = churn(7, every_s=0.5)
    back_s = None
    for now_s in range(2000):
        acts = {act.what for act in drawn.due(float(now_s))}
        if back_s is not None and now_s < back_s + drawn.settle_s:
            assert not acts
        if "coordinator_starts" in acts:
            back_s = now_s
    assert back_s is not None
