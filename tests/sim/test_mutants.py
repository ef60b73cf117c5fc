"""That the judge has eyes: a planted bug for each invariant, at a seed that is known to find it."""

from __future__ import annotations

import pytest

from rollcast.sim.mutants.gate import MUTANTS, hunt
from rollcast.sim.mutants.planting import Mutant, Patch, plain, planted
from rollcast.sim.verdicts import RULES

QUICK = ("acknowledge-before-commit", "no-fencing", "form-not-checked", "trained-ids-not-saved")
BY_NAME = {mutant.name: mutant for mutant in MUTANTS}


def test_every_invariant_has_a_planted_bug() -> None:
    assert {mutant.against for mutant in MUTANTS} == set(RULES) - {"own"}
    assert len(BY_NAME) == len(MUTANTS) >= 20


@pytest.mark.sim
@pytest.mark.parametrize("name", QUICK)
def test_planted_bugs_are_found_at_once(name: str) -> None:
    found = hunt(BY_NAME[name], seeds_max=2)
    assert found.seed is not None
    assert found.rule == BY_NAME[name].against


def test_a_bug_is_taken_out_again() -> None:
    class Owner:
        def method(self) -> int:
            return 1

    with planted(Mutant("one", "I1", "", (Patch(Owner, "method", plain(lambda self: 2)),))):
        assert Owner().method() == 2
    assert Owner().method() == 1
