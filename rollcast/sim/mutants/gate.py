"""The mutation gate: how many seeds it takes until a planted bug is found."""

from __future__ import annotations

from dataclasses import dataclass

from rollcast.sim.mutants import coordinator, processes
from rollcast.sim.mutants.planting import Mutant, planted
from rollcast.sim.simulation import simulate_standard

MUTANTS: tuple[Mutant, ...] = coordinator.MUTANTS + processes.MUTANTS
SEEDS_MAX = 400


@dataclass(frozen=True, slots=True)
class Hunt:
    """What became of one planted bug. ``seed`` is the first that finds it; None: none did."""

    mutant: Mutant
    seed: int | None
    rule: str
    what: str


def hunt(mutant: Mutant, seeds_max: int = SEEDS_MAX) -> Hunt:
    """Simulate with the bug, seed after seed, until the judge finds it; what cores assert of themselves is left out."""
    with planted(mutant):
        for seed in range(seeds_max):
            violations = simulate_standard(seed, own_checks=False).violations
            if violations:
                return Hunt(mutant, seed, violations[0].rule, violations[0].what)
    return Hunt(mutant, None, "", "")
