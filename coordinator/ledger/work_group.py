"""Make the most frequent changes of a ledger together: attempts, rollouts and scores, many rows in a statement.

For each statement the ledger's thread must acquire the interpreter lock again, for which it competes with the event
loop, so that statements of one row cost more than what SQLite does in them.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.core.events.actions import RecordAttempt, StoreRollout
from coordinator.ledger import sql_work as sql
from coordinator.ledger.sql import SqlConnection
from coordinator.ledger.store import ProblemReward
from coordinator.tasks.checks.task import Score
from rollcast.wire.ids import RolloutId

CHANGES_MAX = 256  # in one group, which a refusal of any of them refuses


@dataclass(frozen=True, slots=True)
class RecordScore:
    """A verdict on a rollout; ``problem`` has the new figures of its problem, if any are kept."""

    rollout_id: RolloutId
    score: Score
    problem: ProblemReward | None


WorkChange = RecordAttempt | StoreRollout | RecordScore


class WorkGroup:
    """Changes that were requested directly after each other, and are made all or not at all.

    They are made by kind, whatever their order was. None of them depends on one of a later kind: a rollout needs its
    attempt, a score its rollout; and a slot that has a rollout gets a new attempt only after another kind of change.
    """

    def __init__(self) -> None:
        self._attempts: list[RecordAttempt] = []
        self._rollouts: list[StoreRollout] = []
        self._scores: list[RecordScore] = []

    @property
    def is_full(self) -> bool:
        """Return whether the next change needs another group."""
        return len(self._attempts) + len(self._rollouts) + len(self._scores) >= CHANGES_MAX

    def add(self, change: WorkChange) -> None:
        """Add a change; not once the group was handed over to the ledger's thread."""
        match change:
            case RecordAttempt():
                self._attempts.append(change)
            case StoreRollout():
                self._rollouts.append(change)
            case RecordScore():
                self._scores.append(change)

    def make(self, connection: SqlConnection) -> None:
        """Make all changes. It may be called again, after what it did was undone."""
        sql.insert_attempts(connection, self._attempts)
        sql.insert_rollouts(connection, self._rollouts)
        sql.insert_scores(connection, [(one.rollout_id, one.score) for one in self._scores])
        sql.upsert_problem_rewards(connection, [one.problem for one in self._scores if one.problem is not None])
