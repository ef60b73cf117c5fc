"""Choose which problems of a file to sample again: those whose rewards vary (learnability, arXiv 2502.12272).

Each problem has the moving mean and variance of its rollouts' rewards, stored in the ledger. In a later pass through
the file a problem is sampled with a probability that grows with its volatility, the standard deviation: all problems
that are solved half of the time, and few of those that are always right or always wrong, which may have become easier
or been unlearned. A hash of seed, problem and pass decides, so that the same ledger gives the same stream.

An exploration term may come on top, so that problems of few rollouts, whose volatility is uncertain, are not given up:
DoPR (Zhang et al. 2026, arXiv 2602.00815) selects by volatility plus such a term. It is the bonus of UCB1 here (Auer et
al. 2002, "Finite-time Analysis of the Multiarmed Bandit Problem", figure 1), without its factor sqrt(2), which the
weight covers. The text of the DoPR paper was not available to compare: its equation may weigh the counts otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from blake3 import blake3

from coordinator.ledger.store import ProblemReward

WEIGHT = 0.1  # weight of the newest reward in the moving figures; of the first ten, all weigh the same
VOLATILITY_FULL = 0.5  # standard deviation when half of the rewards are 0 and half are 1: the largest possible


@dataclass(frozen=True, slots=True)
class Difficulty:
    """The pass rates, moving means of the rewards, of the problems that are sampled from a learner step on.

    ``from_step``: None until the stage begins, which depends on what happens in the run.
    """

    from_step: int | None
    least: float
    most: float


class Volatility:
    """Moving reward figures by problem.

    Args:
        seed: the run's seed.
        chance_least: probability with which a problem without volatility is sampled.
        kept: the ledger's figures.
        exploration: weight of the exploration term; 0: none.
        weighs: whether volatility counts; otherwise a problem is only left out by its pass rate.
        difficulty: pass rates of the run's stages.
    """

    def __init__(
        self,
        seed: int,
        chance_least: float,
        kept: Iterable[ProblemReward] = (),
        *,
        exploration: float = 0.0,
        weighs: bool = True,
        difficulty: Sequence[Difficulty] = (),
    ) -> None:
        self._seed = seed
        self._chance_least = chance_least
        self._figures = {one.problem_id: one for one in kept}
        self._exploration = exploration
        self._weighs = weighs
        self._difficulty = tuple(difficulty)
        self._rollouts = sum(one.rollouts for one in self._figures.values())

    def rewarded(self, problem_id: str, reward: float) -> ProblemReward:
        """Count a rollout's reward and return the problem's new figures for the ledger.

        Exponentially weighted mean and variance (Finch 2009, "Incremental calculation of weighted mean and variance").
        """
        before = self._figures.get(problem_id)
        self._rollouts += 1
        if before is None:
            after = ProblemReward(problem_id, 1, reward, 0.0)
        else:
            difference = reward - before.mean
            weight = max(WEIGHT, 1.0 / (before.rollouts + 1))
            step = weight * difference
            variance = (1.0 - weight) * (before.variance + difference * step)
            after = ProblemReward(problem_id, before.rollouts + 1, before.mean + step, variance)
        self._figures[problem_id] = after
        return after

    def stage_began(self, number: int, from_step: int) -> None:
        """Note at which learner step the stage of this number began. Other threads may ask for chances meanwhile."""
        stages = list(self._difficulty)
        stages[number] = replace(stages[number], from_step=from_step)
        self._difficulty = tuple(stages)

    def chance(self, problem_id: str, step: int = 0) -> float:
        """Return the probability of sampling the problem in a later pass, for a learner step; 1 if it has no figures.

        Problems whose pass rate the step's stage leaves out keep a small one, because the policy may have changed.
        """
        figures = self._figures.get(problem_id)
        if figures is None:
            return 1.0
        begun = (one for one in reversed(self._difficulty) if one.from_step is not None and one.from_step <= step)
        stage = next(begun, None)
        if stage is not None and not stage.least <= figures.mean <= stage.most:
            return self._chance_least
        if not self._weighs:
            return 1.0
        volatility = math.sqrt(figures.variance) / VOLATILITY_FULL
        bonus = self._exploration * math.sqrt(math.log(max(self._rollouts, 1)) / figures.rollouts)
        return max(self._chance_least, min(1.0, volatility + bonus))

    def wanted(self, problem_id: str, times: int, step: int = 0) -> bool:
        """Decide whether the problem is sampled in pass ``times`` for a learner step; in the first pass, 0, all are."""
        if not times:
            return True
        digest = blake3(f"rollcast/volatility/{self._seed}/{times}/{problem_id}".encode()).digest()
        return int.from_bytes(digest[:7], "little") < self.chance(problem_id, step) * (1 << 56)
