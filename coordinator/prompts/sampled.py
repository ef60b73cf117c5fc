"""Keep sampled problems for as long as the core may name them: until their groups are trained or dropped."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from coordinator.tasks.checks.task import Problem

NEWEST_KEPT = 4096
"""Problems that stay in any case; as many more are sampled before those that are over are looked for."""


class SampledProblems:
    """Sampled problems by their ids, oldest first. Texts and tests of a problem may take many kilobytes."""

    def __init__(self) -> None:
        self._problems: dict[str, Problem] = {}
        self._look_at = 2 * NEWEST_KEPT
        self.in_use: Callable[[], Collection[str]] = self._problems.keys
        """Returns the ids of the problems that the core has in stock or in a group; all, until there is a core."""

    def __len__(self) -> int:
        return len(self._problems)

    def __getitem__(self, problem_id: str) -> Problem:
        return self._problems[problem_id]

    def keep(self, problems: Iterable[Problem]) -> None:
        """Add problems that the core does not know yet; those before them that are over may be discarded."""
        if len(self._problems) >= self._look_at:
            self._discard()
        for problem in problems:
            self._problems.pop(problem.problem_id, None)  # sampled again: it is among the newest now
            self._problems[problem.problem_id] = problem

    def _discard(self) -> None:
        in_use = self.in_use()
        for problem_id in list(self._problems)[:-NEWEST_KEPT]:
            if problem_id not in in_use:
                del self._problems[problem_id]
        self._look_at = len(self._problems) + NEWEST_KEPT
