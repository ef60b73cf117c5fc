"""Let most of a simulated fleet accuse one honest peer, and count the honest peers that lose anything by it."""

from __future__ import annotations

from dataclasses import replace

from rollcast.sim.scenario import standard
from rollcast.sim.simulation import simulate

LIARS_SHARE = 0.6
_SECONDS, _GAP_S = 60.0, 2.0  # virtual


def framed_honest(seeds: int) -> tuple[int, int]:
    """Return how many honest peers were penalised or quarantined in so many simulations, and how many peers lied."""
    framed = liars = 0
    for seed in range(seeds):
        fleet = replace(standard(seed), liars_share_max=LIARS_SHARE)
        outcome = simulate(fleet, seed, seconds=_SECONDS, faults=("hostile-peer",), gap_s=_GAP_S)
        framed += sum(one.rule == "I9" for one in outcome.violations)
        liars += outcome.faults.get("hostile-peer", 0)
    return framed, liars
