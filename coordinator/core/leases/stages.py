"""Decide which stage of the run a learner step belongs to, and how long completions may be in it.

A stage begins at a fixed learner step, or when the one before it has ended: at a mean reward, or after so many steps.
All of it follows from the figures of the learner's steps in their order. A restarted coordinator sees those again from
the ledger, and a replay from its record, so both are in the same stage without remembering it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from rollcast.wire.ids import Step


@dataclass(frozen=True, slots=True)
class LengthStage:
    """A stage of the run. It lasts until the next one begins.

    It ends once the mean reward of ``reward_steps`` of its steps in a row reaches ``until_reward``, or after
    ``until_steps`` of its steps, whichever is first; None: not for that reason.
    """

    name: str
    from_step: int | None  # learner steps; that of the first stage is 0; None: it begins when the one before ends
    new_tokens_max: int  # longest completion, never below an earlier stage's
    until_reward: float | None = None
    until_steps: int | None = None
    reward_steps: int = 1


class StageBook:
    """Keeps at which learner step each stage began.

    Args:
        stages: the run's stages in their order; empty: it has none.
    """

    def __init__(self, stages: Sequence[LengthStage]) -> None:
        self._stages = tuple(stages)
        self._begins: list[int] = []
        self._rewards: deque[float] = deque()
        self._last_step = 0
        self._take_fixed()

    def at(self, step: Step) -> LengthStage | None:
        """Return the stage of a learner step, of those whose begin is known; None in a run without stages."""
        begun = sum(begin <= step for begin in self._begins)
        return self._stages[begun - 1] if begun else None

    def finished(self, step: Step, reward: float | None) -> tuple[int, Step] | None:
        """Take over a finished step; return the number and first step of the stage that begins with it, if one does.

        Args:
            step: the number of steps finished, which is the next one's number; one seen before changes nothing.
            reward: the mean reward of the batch; None: unknown.
        """
        if step <= self._last_step:
            return None
        self._last_step = step
        number = len(self._begins) - 1
        if number + 1 >= len(self._stages) or step <= self._begins[number]:
            return None
        stage = self._stages[number]
        if reward is not None and math.isfinite(reward):
            self._rewards.append(reward)
        while len(self._rewards) > stage.reward_steps:
            self._rewards.popleft()
        is_full = len(self._rewards) == stage.reward_steps
        rewarded = stage.until_reward is not None and is_full
        if rewarded and math.fsum(self._rewards) / stage.reward_steps >= (stage.until_reward or 0.0):
            return self._begin(step)
        if stage.until_steps is not None and step - self._begins[number] >= stage.until_steps:
            return self._begin(step)
        return None

    def _begin(self, step: Step) -> tuple[int, Step]:
        self._begins.append(step)
        self._rewards.clear()
        return len(self._begins) - 1, step

    def _take_fixed(self) -> None:
        """Note the begins that are known from the beginning: those of all stages up to the first with a condition."""
        for stage in self._stages:
            if stage.from_step is None:
                return
            self._begins.append(stage.from_step)
