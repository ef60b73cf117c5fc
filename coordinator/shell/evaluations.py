"""Begin evaluations by the peers, for the learner's calls and for people's, and describe their state."""

from __future__ import annotations

from coordinator.core.events.evaluation_events import EvaluationKey, EvaluationProblem, EvaluationRequested
from coordinator.core.leases.evaluation_book import Evaluation
from coordinator.prompts.problems import Problems
from coordinator.shell.shell import Shell
from rollcast.runtime.errors import ProcessFailed
from rollcast.wire import limits


class Evaluations:
    """Asks the core for evaluations. An evaluation that the core does not know begins with the first request for it."""

    def __init__(self, shell: Shell, problems: Problems) -> None:
        self._shell = shell
        self._problems = problems

    async def ask(self, key: EvaluationKey, deadline_s: float) -> Evaluation:
        """Return an evaluation with its scores so far, which must not be changed.

        Args:
            deadline_s: seconds from the first request after which it is given up.

        Raises:
            TaskError: there is no such evaluation set.
            ProcessFailed: the coordinator is failing.
        """
        found = self._shell.core.evaluation(key)
        if found is not None:
            return found
        examples = await self._problems.held_out(key.problems, key.set_name)
        problems = tuple(
            EvaluationProblem(one.example_id, tuple(one.prompt_token_ids), one.has_environment) for one in examples
        )
        self._shell.apply(EvaluationRequested(key, problems, min(deadline_s, limits.DURATION_S_MAX)))
        found = self._shell.core.evaluation(key)
        if found is None:
            raise ProcessFailed("the coordinator cannot begin an evaluation", fix="see the coordinator's log")
        return found
