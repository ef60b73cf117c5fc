"""That the judge has eyes: a planted bug for each invariant, at a seed that is known to find it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.core.members.membership import Standing
from rollcast.sim.judge.verdicts import RULES
from rollcast.sim.mutants.gate import MUTANTS, hunt
from rollcast.sim.mutants.planting import Mutant, Patch, plain, planted
from rollcast.sim.scenario import priced
from rollcast.sim.simulation import simulate

QUICK = ("acknowledge-before-commit", "no-fencing", "form-not-checked", "trained-ids-not-saved")
BY_NAME = {mutant.name: mutant for mutant in MUTANTS}


def test_every_invariant_has_a_planted_bug() -> None:
    assert {mutant.against for mutant in MUTANTS} == set(RULES) - {"own", "activation"}
    assert len(BY_NAME) == len(MUTANTS) >= 20


@pytest.mark.sim
@pytest.mark.parametrize("name", QUICK)
def test_planted_bugs_are_found_at_once(name: str) -> None:
    found = hunt(BY_NAME[name], seeds_max=2)
    assert found.seed is not None
    assert found.rule == BY_NAME[name].against


@pytest.mark.sim
def test_work_for_those_who_are_switched_off_is_found() -> None:
    """Only a fleet with an operator has anybody who is drained."""
    bug = Mutant("one", "activation", "", (Patch(Standing, "switched_off", plain(property(lambda self: ""))),))
    fleet = replace(priced(0), operator_every_s=2.0, own_checks=False)
    with planted(bug):
        found = simulate(fleet, 0, seconds=60.0, faults=()).violations
    assert {one.rule for one in found} == {"activation"}
    assert not simulate(fleet, 0, seconds=60.0, faults=()).violations


def test_a_bug_is_taken_out_again() -> None:
    class Owner:
        def method(self) -> int:
            return 1

    with planted(Mutant("one", "I1", "", (Patch(Owner, "method", plain(lambda self: 2)),))):
        assert Owner().method() == 2
    assert Owner().method() == 1
