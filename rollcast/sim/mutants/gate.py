"""Run the mutation gate: count the seeds until the simulator finds a planted bug."""

from __future__ import annotations

from dataclasses import dataclass

from rollcast.sim.mutants import coordinator, episodes, processes
from rollcast.sim.mutants.planting import Mutant, planted
from rollcast.sim.simulation import simulate_standard

MUTANTS: tuple[Mutant, ...] = coordinator.MUTANTS + episodes.MUTANTS + processes.MUTANTS
SEEDS_MAX = 400


@dataclass(frozen=True, slots=True)
class Hunt:
    """The search for one planted bug. ``seed`` is the first seed that finds it; None if no seed does."""

    mutant: Mutant
    seed: int | None
    rule: str
    what: str


def hunt(mutant: Mutant, seeds_max: int = SEEDS_MAX) -> Hunt:
    """Simulate with the bug, seed after seed, until the judge finds it.

    The cores' own assertions are switched off: the gate measures what the independent judge finds.
    """
    with planted(mutant):
        for seed in range(seeds_max):
            violations = simulate_standard(seed, own_checks=False, **mutant.fleet).violations
            if violations:
                return Hunt(mutant, seed, violations[0].rule, violations[0].what)
    return Hunt(mutant, None, "", "")
