"""Define what checks completions of a task of rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from coordinator.tasks.checks.task import Problem, Score, ScoringFailure
from coordinator.workers.tracebacks import USERS_ERRORS, users_traceback

Item = tuple[Problem, str]  # a problem and the text of a completion
Outcome = Score | ScoringFailure


class Checker(ABC):
    """Checks completions; runs in a verifier process.

    A check that waits for others, such as a service, checks a batch at once: it says so by ``together``, and overrides
    ``check_many``.
    """

    starts_processes = False
    """Whether the check starts processes or threads, or writes files."""
    together = False
    """Whether batches are given to ``check_many``; known after ``warm_up``."""

    def warm_up(self) -> None:  # noqa: B027 (most checks have nothing to import)
        """Import what the check needs.

        Raises:
            MissingExtra: it is not installed.
            TaskError: this machine cannot check as it should.
        """

    @abstractmethod
    def check(self, problem: Problem, completion_text: str) -> Score:
        """Score one completion.

        Raises:
            ScoringFailure: it could not be scored, for a known reason. Any other exception is a failure, too.
        """

    async def check_many(self, items: Sequence[Item], timeout_s: float) -> list[Outcome]:
        """Score completions at once, each within ``timeout_s``; an exception is a failure of them all.

        Unless it is overridden, they are scored one by one, and each fails alone.
        """
        return [outcome_of(self.check, *item) for item in items]


def outcome_of(check: Callable[..., Score], *arguments: object) -> Outcome:
    """Return the score of one completion, or the failure that its check raises; any exception is one."""
    try:
        return check(*arguments)
    except ScoringFailure as failure:
        return failure
    except USERS_ERRORS as error:
        return ScoringFailure("exception", users_traceback(error))


def metadata_of(problem: Problem) -> dict[str, object]:
    """Return a problem's metadata as reward functions and services get them."""
    found = problem.data.get("metadata")
    return dict(found) if isinstance(found, dict) else {}
