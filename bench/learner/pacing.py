"""Measure the effect of pacing: dropped rollouts and learner utilisation with 1.5 times the workers that it needs.

Goodput is measured as well, while a quarter of 16 workers is killed each minute. The staleness limit is S_needed
(rollcast/sim/scenario.py). ``dropped_share`` counts attempts made in vain (too old, too late for their slot, or
returned) as a share of all that ended. Without pacing, every request gets work. Where running rollouts continue with
new versions ("continue"), each is uploaded when it ends, not when its batch does. With a long tail of lengths ("tail")
some groups take longer than S allows, whenever they are started.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial

from bench.machine import Outcome
from rollcast.sim.fleet import Fleet
from rollcast.sim.scenario import long_tailed, paced
from rollcast.sim.settings import FleetSettings

SURPLUS = 1.5
KILLED_SHARE = 0.25
KILL_EACH_S = 60.0
DOWN_S = 20.0  # seconds from a kill to the process's next start
WARM_UP_STEPS = 10  # first steps, which do not count


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=float, default=150.0, help="simulated time in learner steps")
    parser.add_argument("--seed", type=int, default=0)


def run(arguments: argparse.Namespace) -> Outcome:
    seconds = paced(32).train_s * arguments.steps
    figures: dict[str, float] = {}
    base = paced(32, SURPLUS)
    fleets = {
        "predict": base,
        "none": replace(base, pacing="none"),
        "continue": replace(base, slice_tokens=2, at_version_swap="continue"),
        "tail": long_tailed(32, SURPLUS),
    }
    for name, settings in fleets.items():
        figures |= {f"{key}_{name}": value for key, value in _paced(settings, arguments.seed, seconds).items()}
    figures |= {key: figures[f"{key}_predict"] for key in ("dropped_share", "utilisation")}
    figures |= _killed(arguments.seed, seconds)
    return Outcome({"steps": arguments.steps, "seed": arguments.seed, "surplus": SURPLUS}, figures)


def _paced(settings: FleetSettings, seed: int, seconds: float) -> dict[str, float]:
    fleet = Fleet(settings, seed)
    fleet.run(WARM_UP_STEPS * settings.train_s)
    before, steps, ages = fleet.coordinator.tables.counts(), fleet.ground.oracle.steps, dict(fleet.ground.oracle.ages)
    fleet.run(seconds)
    aged = {age: count - ages.get(age, 0) for age, count in fleet.ground.oracle.ages.items()}
    after = fleet.coordinator.tables.counts()
    late = ("stale", "group_stale", "late_duplicate", "returned", "lease_expired")
    dropped = sum(after.dropped.get(one, 0) - before.dropped.get(one, 0) for one in late)
    trained = after.trained - before.trained
    return {
        "dropped_share": dropped / max(1, dropped + trained),
        "utilisation": (fleet.ground.oracle.steps - steps) * settings.train_s / seconds,
        "mean_staleness": sum(age * count for age, count in aged.items()) / max(1, sum(aged.values())),
        "violations": len(fleet.ground.oracle.violations),
    }


def _killed(seed: int, seconds: float) -> dict[str, float]:
    """Return the goodput (trained rollouts per second) relative to the same fleet without kills."""
    # Fewer workers than the learner needs, so that every rollout counts; they report their tokens each 10 s.
    settings = replace(paced(16, 0.8), partial_interval_s=10.0, slice_tokens=2, slice_s=10.0)
    goodput = {}
    for killed in (0.0, KILLED_SHARE):
        fleet = Fleet(settings, seed)
        agenda, chance = fleet.ground.agenda, fleet.ground.chance.of("kills")

        def kill(fleet: Fleet, count: int) -> None:
            for peer in chance.sample(fleet.peers, count):  # noqa: B023
                fleet.down(peer, DOWN_S)
            agenda.after(KILL_EACH_S, kill, fleet, count)  # noqa: B023

        if killed:
            agenda.after(KILL_EACH_S, partial(kill, fleet, round(killed * settings.peers)))
        fleet.run(seconds)
        goodput[killed] = fleet.coordinator.tables.counts().trained / seconds
        stuck = agenda.now - fleet.ground.oracle.last_progress_s
    down = KILLED_SHARE * DOWN_S / KILL_EACH_S
    share = goodput[KILLED_SHARE] / goodput[0.0]
    return {"kill_goodput": share, "kill_goodput_of_up_time": share / (1.0 - down), "kill_longest_wait_s": stuck}
