"""Score completions with a function that the user wrote."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coordinator.config.checks import PythonCheck
from coordinator.tasks.checks.checker import Checker, Item, Outcome, metadata_of, outcome_of
from coordinator.tasks.checks.task import Problem, Score, ScoringFailure
from coordinator.workers.plugins import load_plugin
from coordinator.workers.tracebacks import USERS_ERRORS, users_traceback
from rollcast.runtime.errors import TaskError

REWARDS = "rollcast.rewards"
"""The group of entry points."""
ONE = ("prompt", "completion", "answer", "metadata")
MANY = ("prompts", "completions", "answers", "metadata")


class PythonChecker(Checker):
    """Calls the function with those of its parameters that it names; see docs/tasks.md."""

    starts_processes = True  # it may do whatever the user wants

    def __init__(self, config: PythonCheck) -> None:
        self._config = config
        self._function: Callable[..., Any] | None = None
        self._names: tuple[str, ...] = ()
        self._is_async = False

    @property
    def together(self) -> bool:  # type: ignore[override]
        return self._config.batch or self._is_async

    def warm_up(self) -> None:
        config = self._config
        function = load_plugin(config.path, REWARDS)
        if not callable(function):
            raise TaskError(f"{config.path} is not a function", cause=f"it is {_kind(function)}", fix="name a function")
        self._names = _parameters(function, MANY if config.batch else ONE, config.path)
        self._is_async = inspect.iscoroutinefunction(function)
        self._function = function

    def check(self, problem: Problem, completion_text: str) -> Score:
        if self.together:
            outcome = asyncio.run(self.check_many([(problem, completion_text)], 3600.0))[0]
            if isinstance(outcome, ScoringFailure):
                raise outcome
            return outcome
        return _score(self._call(_arguments(ONE, problem, completion_text)))

    async def check_many(self, items: Sequence[Item], timeout_s: float) -> list[Outcome]:
        if self._function is None:
            self.warm_up()
        if not self.together:  # in a sum with a check of batches
            return await super().check_many(items, timeout_s)
        if not self._config.batch:
            return list(await asyncio.gather(*(self._check_async(*item, timeout_s) for item in items)))
        columns = zip(*(_arguments(ONE, *item).values() for item in items), strict=True)
        found = self._call(dict(zip(MANY, map(list, columns), strict=True)))
        if inspect.isawaitable(found):
            async with asyncio.timeout(timeout_s):
                found = await found
        if not isinstance(found, Sequence) or len(found) != len(items):
            raise TypeError(
                f"the reward function returned {_kind(found)} for {len(items)} completions, not a list of them"
            )
        return [outcome_of(_score, one) for one in found]

    async def _check_async(self, problem: Problem, text: str, timeout_s: float) -> Outcome:
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                return _score(await self._call(_arguments(ONE, problem, text)))
        except ScoringFailure as failure:
            return failure
        except USERS_ERRORS as error:
            if limit.expired():  # a function may also raise a TimeoutError of its own
                return ScoringFailure("timeout", f"the reward function took longer than {timeout_s:g} s")
            return ScoringFailure("exception", users_traceback(error))

    def _call(self, arguments: Mapping[str, Any]) -> Any:
        if self._function is None:
            self.warm_up()
        assert self._function is not None
        return self._function(**{name: arguments[name] for name in self._names})


def _score(value: Any) -> Score:
    """Return the score of what the user's function returned.

    Raises:
        ScoringFailure: it is no number. Its frames would be ours alone, so that none is shown.
    """
    try:
        return score_of(value)
    except TypeError as error:
        raise ScoringFailure("exception", str(error)) from None


def score_of(value: Any) -> Score:
    """Return a score from what a reward function returned: a number, or numbers by name.

    Of several numbers the one named ``reward`` is the reward; without it, their sum is. 1 or more is fully right.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(value, Mapping):
        parts = {str(name): _number(part) for name, part in value.items()}
        if "" in parts:
            raise TypeError("the reward function returned a number under an empty name")
        reward = parts.pop("reward", None)
        reward = sum(parts.values()) if reward is None else reward
        return Score(reward, reward >= 1.0, parts=parts)
    reward = _number(value)
    return Score(reward, reward >= 1.0)


def _number(value: Any) -> float:
    try:
        if value is not None and not isinstance(value, str | bytes):
            return float(value)  # numpy's and torch's scalars, too
    except (TypeError, ValueError):
        pass
    raise TypeError(f"the reward function returned {_kind(value)}, not a number or numbers by name")


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _arguments(names: Sequence[str], problem: Problem, text: str) -> dict[str, Any]:
    return dict(zip(names, (problem.prompt, text, problem.answer, metadata_of(problem)), strict=True))


def _parameters(function: Callable[..., Any], known: Sequence[str], what: str) -> tuple[str, ...]:
    """Return the names of the arguments that the function takes.

    Raises:
        TaskError: it needs an argument of another name.
    """
    parameters = inspect.signature(function).parameters.values()
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return tuple(known)
    needed = [one.name for one in parameters if one.default is one.empty and one.kind is not one.VAR_POSITIONAL]
    strange = [name for name in needed if name not in known]
    if strange:
        raise TaskError(
            f"the reward function {what} takes an argument {strange[0]!r}",
            cause=f"it is called with {', '.join(known)}, by name, as far as it takes them",
            fix="rename or remove the argument, or set batch if it takes lists",
        )
    return tuple(one.name for one in parameters if one.name in known)
