"""Which problems of a file are worth drawing again: those whose rewards vary (learnability, arXiv 2502.12272).

Each problem has the moving mean and variance of its rollouts' rewards, kept in the ledger. When a file is gone through
again, a problem is drawn with a chance that grows with its volatility, the standard deviation: all that are solved half
of the time, few of those that are always right or always wrong, which may have become easier or been forgotten. The
chance is decided by a hash of seed, problem and pass, so the same ledger gives the same stream.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from blake3 import blake3

from coordinator.ledger.store import ProblemReward

WEIGHT = 0.1  # of the newest reward in the moving figures
VOLATILITY_FULL = 0.5  # of rewards 0 and 1, half of each: the most there is between 0 and 1


class Volatility:
    """Moving figures of rewards by problem.

    Args:
        seed: of the run.
        chance_least: with which a problem without volatility is drawn all the same.
        kept: what the ledger has.
    """

    def __init__(self, seed: int, chance_least: float, kept: Iterable[ProblemReward] = ()) -> None:
        self._seed = seed
        self._chance_least = chance_least
        self._figures = {one.problem_id: one for one in kept}

    def rewarded(self, problem_id: str, reward: float) -> ProblemReward:
        """One more rollout of this problem; what the ledger is to keep.

        Exponentially weighted mean and variance (Finch 2009, "Incremental calculation of weighted mean and variance").
        """
        before = self._figures.get(problem_id)
        if before is None:
            after = ProblemReward(problem_id, 1, reward, 0.0)
        else:
            difference = reward - before.mean
            step = WEIGHT * difference
            variance = (1.0 - WEIGHT) * (before.variance + difference * step)
            after = ProblemReward(problem_id, before.rollouts + 1, before.mean + step, variance)
        self._figures[problem_id] = after
        return after

    def chance(self, problem_id: str) -> float:
        """With which the problem is drawn when its turn comes again; 1 where nothing is known."""
        figures = self._figures.get(problem_id)
        if figures is None:
            return 1.0
        return max(self._chance_least, min(1.0, math.sqrt(figures.variance) / VOLATILITY_FULL))

    def wanted(self, problem_id: str, times: int) -> bool:
        """Whether the problem is drawn in pass ``times``; everything is in the first one."""
        if not times:
            return True
        digest = blake3(f"rollcast/volatility/{self._seed}/{times}/{problem_id}".encode()).digest()
        return int.from_bytes(digest[:7], "little") < self.chance(problem_id) * (1 << 56)
