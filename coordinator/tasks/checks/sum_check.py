"""Score completions by parts: their weighted sum, their format, their length."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from coordinator.config.checks import FormatCheck, LengthCheck
from coordinator.tasks.checks.checker import Checker, Item, Outcome
from coordinator.tasks.checks.task import Problem, Score, ScoringFailure
from rollcast.runtime.errors import TaskError


class FormatChecker(Checker):
    """Accepts completions in which the pattern is found."""

    def __init__(self, config: FormatCheck) -> None:
        try:
            self._pattern = re.compile(config.pattern)
        except re.error as error:
            raise TaskError(
                f"the pattern {config.pattern!r} is no regular expression", cause=str(error), fix="correct it"
            ) from None

    def check(self, problem: Problem, completion_text: str) -> Score:
        found = self._pattern.search(completion_text) is not None
        return Score(float(found), found)


class LengthChecker(Checker):
    """Gives less to completions that are too long; as DAPO's soft punishment (arXiv 2503.14476, section 3.4)."""

    def __init__(self, config: LengthCheck) -> None:
        self._config = config

    def check(self, problem: Problem, completion_text: str) -> Score:
        most, zero_at = self._config.most, self._config.zero_at
        reward = min(1.0, max(0.0, (zero_at - len(completion_text)) / (zero_at - most)))
        return Score(reward, reward == 1.0)


class SumChecker(Checker):
    """Adds the weighted rewards of checks, each a part under its own name.

    Args:
        parts: name, weight and check of each part.
    """

    def __init__(self, parts: Sequence[tuple[str, float, Checker]]) -> None:
        self._parts = tuple(parts)
        self.starts_processes = any(checker.starts_processes for _, _, checker in parts)

    @property
    def together(self) -> bool:  # type: ignore[override]
        return any(checker.together for _, _, checker in self._parts)

    def warm_up(self) -> None:
        for _, _, checker in self._parts:
            checker.warm_up()

    def check(self, problem: Problem, completion_text: str) -> Score:
        return self._sum([checker.check(problem, completion_text) for _, _, checker in self._parts])

    async def check_many(self, items: Sequence[Item], timeout_s: float) -> list[Outcome]:
        by_part = await asyncio.gather(*(checker.check_many(items, timeout_s) for _, _, checker in self._parts))
        return [self._outcome(scores) for scores in zip(*by_part, strict=True)]

    def _outcome(self, scores: Sequence[Outcome]) -> Outcome:
        failure = next((one for one in scores if isinstance(one, ScoringFailure)), None)
        return failure or self._sum([one for one in scores if isinstance(one, Score)])

    def _sum(self, scores: Sequence[Score]) -> Score:
        reward, exact, parts, details = 0.0, True, dict[str, float](), list[str]()
        for (name, weight, _), score in zip(self._parts, scores, strict=True):
            reward += weight * score.reward
            exact = exact and (score.exact or weight <= 0.0)
            parts[name] = score.reward
            parts |= {f"{name}.{inner}": value for inner, value in score.parts.items()}
            if score.detail:
                details.append(f"{name}: {score.detail}")
        return Score(reward, exact, "; ".join(details), parts)
