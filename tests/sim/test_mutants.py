"""Test the quick part of the mutation gate: the first seeds find a planted bug for each invariant.

`python -m bench mutants` hunts all of them.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from coordinator.core.members.membership import Reputation
from rollcast.sim.judge.verdicts import RULES
from rollcast.sim.mutants.gate import MUTANTS, hunt, main
from rollcast.sim.mutants.planting import Mutant, Patch, plain, planted
from rollcast.sim.scenario import priced
from rollcast.sim.simulation import simulate

#: Planted bugs, at least one per rule: the rule, and the first seed that finds the bug.
QUICK = {
    "acknowledge-before-commit": ("I1", 0),
    "trained-ids-not-saved": ("I2", 0),
    "no-staleness-recheck": ("I3", 0),
    "other-bytes-under-a-known-version": ("I4", 0),
    "older-version-activated": ("I5", 5),
    "no-fencing": ("I6", 6),
    "form-not-checked": ("I7", 0),
    "finished-attempts-for-ever": ("I8", 0),
    "accused-without-a-receipt": ("I9", 0),
    "scoring-queue-leaks": ("I10", 1),
    "drop-counted-twice": ("I11", 0),
    "announced-before-pushed": ("I12", 0),
    "leases-never-expire": ("deadline", 2),
    "slots-as-asked-for": ("starve", 0),
    "outage-trained-as-zero": ("unscored", 0),
    "answered-with-any-version": ("version", 6),
    "evaluated-with-any-version": ("evaluation", 6),
    "seeds-shared": ("seed", 0),
    "observations-trained": ("episode", 0),
    "commit-without-fence": ("leader", 11),
    "serve-before-epoch-read": ("I1", 0),
    "refused-counts-as-delivered": ("cell", 0),
}
#: A change of cores or faults may move the seed. A hunt begins at the known one, as those before find nothing.
SEEDS_MAX = 20
BY_NAME = {mutant.name: mutant for mutant in MUTANTS}


def test_every_invariant_has_a_planted_bug() -> None:
    assert {mutant.against for mutant in MUTANTS} == set(RULES) - {"own", "activation"}
    assert len(BY_NAME) == len(MUTANTS) >= 20
    assert {rule for rule, _ in QUICK.values()} == {mutant.against for mutant in MUTANTS}


@pytest.mark.parametrize("name", BY_NAME)
def test_what_a_bug_replaces_exists(name: str) -> None:
    with planted(BY_NAME[name]):
        assert all(hasattr(patch.owner, patch.name) for patch in BY_NAME[name].patches)


@pytest.mark.sim
@pytest.mark.parametrize("name", QUICK)
def test_planted_bugs_are_found_by_the_first_seeds(name: str) -> None:
    rule, first = QUICK[name]
    found = hunt(BY_NAME[name], range(first, SEEDS_MAX))
    assert found.seed is not None
    assert found.rule == rule


@pytest.mark.sim
def test_without_a_bug_the_first_seed_finds_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """With one coordinator, with a standby beside it and with two cells, by the program that the gate starts."""
    main("clean", "0", "1")
    assert json.loads(capsys.readouterr().out) == {"violations": []}


@pytest.mark.sim
def test_work_for_peers_that_are_switched_off_is_found() -> None:
    """Only a fleet with an operator drains peers. Without the bug, test_simulation finds nothing in such a fleet."""
    bug = Mutant(
        "one", "activation", "", (Patch(Reputation, "is_on", plain(property(lambda self: not self.kept_out))),)
    )
    fleet = replace(priced(0), operator_every_s=2.0, own_checks=False)
    with planted(bug):
        found = simulate(fleet, 0, seconds=60.0, faults=()).violations
        soon = simulate(fleet, 0, seconds=60.0, faults=(), until_violation=True)
    assert {one.rule for one in found} == {"activation"}
    assert soon.violations[0] == found[0]
    assert soon.seconds == found[0].at_s < 60.0


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
