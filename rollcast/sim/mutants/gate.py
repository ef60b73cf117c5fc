"""Run the mutation gate: count the seeds until the simulator finds a planted bug.

As a program this module hunts one bug, or simulates clean seeds, and prints the result as JSON; see ``hunts`` and
``violations``, which start it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rollcast.sim.mutants import cells, coordinator, episodes, leadership, processes
from rollcast.sim.mutants.planting import Mutant, planted
from rollcast.sim.parallel import documents
from rollcast.sim.simulation import simulate_standard

MUTANTS: tuple[Mutant, ...] = (
    coordinator.MUTANTS + episodes.MUTANTS + leadership.MUTANTS + cells.MUTANTS + processes.MUTANTS
)
_SEEDS_A_PROCESS = 40  # clean ones
_FLEETS: tuple[dict[str, Any], ...] = ({}, {"coordinators": 2}, {"cells": 2})  # that are simulated without a bug


@dataclass(frozen=True, slots=True)
class Hunt:
    """The search for one planted bug. ``seed`` is the first seed that finds it; None if no seed does."""

    mutant: Mutant
    seed: int | None
    rule: str
    what: str


def hunt(mutant: Mutant, seeds: Iterable[int]) -> Hunt:
    """Simulate with the bug, seed after seed, until the judge finds it.

    The cores' own assertions are switched off: the gate measures what the independent judge finds.
    """
    with planted(mutant):
        for seed in seeds:
            violations = simulate_standard(seed, own_checks=False, until_violation=True, **mutant.fleet).violations
            if violations:
                return Hunt(mutant, seed, violations[0].rule, violations[0].what)
    return Hunt(mutant, None, "", "")


def hunts(mutants: Sequence[Mutant], seeds_max: int, processes: int) -> Iterator[Hunt]:
    """Hunt several bugs, each in a process of its own, ``processes`` at a time."""
    commands = [_command("hunt", mutant.name, seeds_max) for mutant in mutants]
    for mutant, found in zip(mutants, documents(commands, processes), strict=True):
        yield Hunt(mutant, found["seed"], found["rule"], found["what"])


def violations(seeds: int, processes: int) -> Iterator[str]:
    """Simulate so many seeds without a bug, in each kind of fleet (see _FLEETS); yield what the judge finds."""
    firsts = range(0, seeds, _SEEDS_A_PROCESS)
    commands = [_command("clean", first, min(seeds, first + _SEEDS_A_PROCESS)) for first in firsts]
    for found in documents(commands, processes):
        yield from found["violations"]


def _command(*words: object) -> list[str]:
    return ["-P", "-m", __name__, *map(str, words)]


def _violations(seeds: Iterable[int]) -> Iterator[str]:
    for seed in seeds:
        for fleet in _FLEETS:
            for violation in simulate_standard(seed, **fleet).violations:
                yield f"seed {seed}, {fleet or 'one coordinator'}: {violation}"


def main(what: str, first: str, last: str) -> None:
    """Hunt the bug ``first`` within ``last`` seeds, or simulate the seeds from ``first`` to before ``last``."""
    if what == "hunt":
        mutant = next(one for one in MUTANTS if one.name == first)
        found = hunt(mutant, range(int(last)))
        json.dump({"seed": found.seed, "rule": found.rule, "what": found.what}, sys.stdout)
    else:
        json.dump({"violations": list(_violations(range(int(first), int(last))))}, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
