"""Check answers by the answer of their row, and list the checkers of all kinds of checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from coordinator.config.checks import (
    CheckConfig,
    CodeCheck,
    ExactCheck,
    FormatCheck,
    HttpCheck,
    JudgeCheck,
    LengthCheck,
    MathCheck,
    PythonCheck,
    SumCheck,
)
from coordinator.tasks.checks.checker import Checker
from coordinator.tasks.checks.code_check import CodeChecker
from coordinator.tasks.checks.http_check import HttpChecker
from coordinator.tasks.checks.judge_check import JudgeChecker
from coordinator.tasks.checks.math_answers import parse_math, same_math
from coordinator.tasks.checks.python_check import PythonChecker
from coordinator.tasks.checks.sum_check import FormatChecker, LengthChecker, SumChecker
from coordinator.tasks.checks.task import Problem, Score

RIGHT, WRONG = Score(1.0, True), Score(0.0, False)


#: What makes the checker of each kind of check: a new kind is a configuration, a Checker and a line here.
CHECKERS: Mapping[type, Callable[[Any], Checker]] = {
    ExactCheck: lambda config: ExactChecker(config),
    MathCheck: lambda _config: MathChecker(),
    CodeCheck: CodeChecker,
    FormatCheck: FormatChecker,
    LengthCheck: LengthChecker,
    PythonCheck: PythonChecker,
    HttpCheck: HttpChecker,
    JudgeCheck: JudgeChecker,
    SumCheck: lambda config: SumChecker([(one.name, one.weight, build_checker(one.check)) for one in config.parts]),
}


def build_checker(config: CheckConfig) -> Checker:
    """Return the checker that the configuration names."""
    return CHECKERS[type(config)](config)


class ExactChecker(Checker):
    """Accepts the same text, apart from white space at both ends."""

    def __init__(self, config: ExactCheck) -> None:
        self._config = config

    def check(self, problem: Problem, completion_text: str) -> Score:
        given, wanted = completion_text.strip(), problem.answer.strip()
        if self._config.last_line:
            given = given.rsplit("\n", 1)[-1].strip()
        if self._config.ignore_case:
            given, wanted = given.casefold(), wanted.casefold()
        return RIGHT if given == wanted else WRONG


class MathChecker(Checker):
    """Accepts the same text, and mathematically equal answers."""

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
