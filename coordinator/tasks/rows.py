"""Use rows of a file or dataset as a task."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from random import Random
from typing import Any

from coordinator.tasks.checks.checker import Checker
from coordinator.tasks.checks.checks import build_checker
from coordinator.tasks.checks.task import Problem, Score
from coordinator.tasks.fields import Row
from coordinator.tasks.row_spool import RowSpool
from coordinator.tasks.sources import RowsTask, good_rows
from coordinator.tasks.wording import fixed_pieces, other_characters

WORDING_ROWS_MAX = 20_000  # prompts compared for common wording, spread evenly over all rows


class Rows:
    """Problems from rows, which are read when the first one is needed: verifiers never need them.

    Raises:
        TaskError: from any method that needs the rows: the source cannot be read, or a row is wrong.
        MissingExtra: likewise: the package that reads the source is not installed.
    """

    def __init__(self, config: RowsTask) -> None:
        self.name = config.kind
        self.rows_read = 0
        """Rows read so far; reading millions takes minutes."""
        self._config = config
        self._checker = build_checker(config.check)

    @cached_property
    def _rows(self) -> RowSpool:
        return RowSpool(self._counted())

    def _counted(self) -> Iterator[Row]:
        for row in good_rows(self._config):
            self.rows_read += 1
            yield row

    @property
    def problem_count(self) -> int | None:
        return len(self._rows)

    @property
    def starts_processes(self) -> bool:
        return self._checker.starts_processes

    def wording(self) -> tuple[str, ...]:
        step = -(-len(self._rows) // WORDING_ROWS_MAX)
        return fixed_pieces([self._rows[index].prompt for index in range(0, len(self._rows), step)])

    def characters(self) -> str:
        return other_characters(self.wording(), self._texts())

    def _texts(self) -> Iterator[str]:
        for index in range(len(self._rows)):
            row = self._rows[index]
            yield from (row.prompt, row.answer)

    def problem(self, index: int) -> Problem:
        number = index % len(self._rows)
        return problem_of(self._rows[number], f"{self.name}:{number}")

    def warm_up(self) -> None:
        self._checker.warm_up()

    def verify(self, problem: Problem, completion_text: str) -> Score:
        return self._checker.check(problem, completion_text)

    @property
    def checker(self) -> Checker:
        """Return the check of the rows, for workers that give it batches."""
        return self._checker

    def demonstration(self, problem: Problem, *, flawed: bool, random: Random) -> str | None:
        return problem.answer or None


def problem_of(row: Row, problem_id: str) -> Problem:
    """Return the row as a problem; its messages, tests and metadata are the problem's data."""
    data: dict[str, Any] = {"tests": row.tests.to_json()} if row.tests else {}
    data |= {"metadata": row.metadata} if row.metadata else {}
    return Problem(problem_id, row.prompt, row.answer, data | ({"messages": row.messages} if row.messages else {}))
