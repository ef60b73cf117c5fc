"""Test the quick part of the mutation gate: the first seeds find a planted bug for each invariant.

`python -m bench mutants` hunts all of them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.core.members.membership import Reputation
from rollcast.sim.judge.verdicts import RULES
from rollcast.sim.mutants.gate import MUTANTS, hunt
from rollcast.sim.mutants.planting import Mutant, Patch, plain, planted
from rollcast.sim.scenario import priced
from rollcast.sim.simulation import simulate, simulate_standard

#: Planted bugs that the first seeds find, at least one per rule. A change of cores or faults may move the seed, hence
#: SEEDS_MAX.
QUICK = {
    "acknowledge-before-commit": "I1",
    "trained-ids-not-saved": "I2",
    "no-staleness-recheck": "I3",
    "other-bytes-under-a-known-version": "I4",
    "older-version-activated": "I5",
    "no-fencing": "I6",
    "form-not-checked": "I7",
    "finished-attempts-for-ever": "I8",
    "accused-without-a-receipt": "I9",
    "scoring-queue-leaks": "I10",
    "drop-counted-twice": "I11",
    "announced-before-pushed": "I12",
    "leases-never-expire": "deadline",
    "slots-as-asked-for": "starve",
    "outage-trained-as-zero": "unscored",
    "answered-with-any-version": "version",
    "evaluated-with-any-version": "evaluation",
    "seeds-shared": "seed",
    "observations-trained": "episode",
    "commit-without-fence": "leader",
    "serve-before-epoch-read": "I1",
}
SEEDS_MAX = 20
BY_NAME = {mutant.name: mutant for mutant in MUTANTS}


def test_every_invariant_has_a_planted_bug() -> None:
    assert {mutant.against for mutant in MUTANTS} == set(RULES) - {"own", "activation"}
    assert len(BY_NAME) == len(MUTANTS) >= 20
    assert set(QUICK.values()) == {mutant.against for mutant in MUTANTS}


@pytest.mark.parametrize("name", BY_NAME)
def test_what_a_bug_replaces_exists(name: str) -> None:
    with planted(BY_NAME[name]):
        assert all(hasattr(patch.owner, patch.name) for patch in BY_NAME[name].patches)


@pytest.mark.sim
@pytest.mark.parametrize(("name", "rule"), QUICK.items())
def test_planted_bugs_are_found_by_the_first_seeds(name: str, rule: str) -> None:
    found = hunt(BY_NAME[name], SEEDS_MAX)
    assert found.seed is not None
    assert found.rule == rule


@pytest.mark.sim
@pytest.mark.parametrize("seed", range(2))
def test_without_a_bug_the_first_seeds_find_nothing(seed: int) -> None:
    assert not simulate_standard(seed).violations


@pytest.mark.sim
def test_work_for_peers_that_are_switched_off_is_found() -> None:
    """Only a fleet with an operator drains peers. Without the bug, test_simulation finds nothing in such a fleet."""
    bug = Mutant("one", "activation", "", (Patch(Reputation, "switched_off", plain(property(lambda self: ""))),))
    fleet = replace(priced(0), operator_every_s=2.0, own_checks=False)
    with planted(bug):
        found = simulate(fleet, 0, seconds=60.0, faults=()).violations
    assert {one.rule for one in found} == {"activation"}


def test_a_planted_bug_is_removed_again() -> None:
    class Base:
        def method(self) -> int:
            return 1

    class Heir(Base):
        pass

    for owner, other in ((Base, 2), (Heir, 1)):
        with planted(Mutant("one", "I1", "", (Patch(owner, "method", plain(lambda self: 2)),))):
            assert (Heir().method(), Base().method()) == (2, other)
        assert (Heir().method(), Base().method()) == (1, 1)
    assert "method" not in vars(Heir)
