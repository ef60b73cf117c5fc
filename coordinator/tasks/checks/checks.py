"""Check answers: score a completion by the answer or the tests of its row."""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol, assert_never

from coordinator.config.tasks import CheckConfig, CodeCheck, ExactCheck, MathCheck
from coordinator.tasks.checks.code_check import CodeChecker
from coordinator.tasks.checks.math_answers import parse_math, same_math
from coordinator.tasks.checks.task import Problem, Score

RIGHT, WRONG = Score(1.0, True), Score(0.0, False)


class Checker(Protocol):
    """Checks the completions of a task of rows; runs in a verifier process."""

    @property
    def starts_processes(self) -> bool:
        """Return whether the check starts processes of its own."""
        ...

    def warm_up(self) -> None:
        """Import what the check needs.

        Raises:
            MissingExtra: it is not installed.
            TaskError: this machine cannot check as it should.
        """
        ...

    def check(self, problem: Problem, completion_text: str) -> Score:
        """Score one completion."""
        ...


def build_checker(config: CheckConfig) -> Checker:
    """Return the checker that the configuration names."""
    match config:
        case ExactCheck():
            return ExactChecker(config)
        case MathCheck():
            return MathChecker()
        case CodeCheck():
            return CodeChecker(config)
        case _:
            assert_never(config)


class ExactChecker:
    """Accepts the same text, apart from white space at both ends."""

    starts_processes = False

    def __init__(self, config: ExactCheck) -> None:
        self._config = config

    def warm_up(self) -> None:
        """Do nothing: this check needs no library."""

    def check(self, problem: Problem, completion_text: str) -> Score:
        given, wanted = completion_text.strip(), problem.answer.strip()
        if self._config.last_line:
            given = given.rsplit("\n", 1)[-1].strip()
        if self._config.ignore_case:
            given, wanted = given.casefold(), wanted.casefold()
        return RIGHT if given == wanted else WRONG


class MathChecker:
    """Accepts the same text, and mathematically equal answers."""

    starts_processes = False

    def __init__(self) -> None:
        self._gold = lru_cache(maxsize=1024)(parse_math)

    def warm_up(self) -> None:
        same_math(parse_math("1"), parse_math("2"))

    def check(self, problem: Problem, completion_text: str) -> Score:
        text = completion_text.strip()
        if text == problem.answer.strip():
            return RIGHT
        gold = self._gold(problem.answer)
        try:
            return RIGHT if gold and same_math(gold, parse_math(text)) else WRONG
        except Exception as error:  # the right answer could be parsed, so that the completion is the cause
            return Score(0.0, False, f"math-verify cannot read it: {type(error).__name__}")
