"""A JSONL file of {"prompt": ..., "answer": ...} as a task, checked with math-verify."""

from __future__ import annotations

import importlib
import json
import logging
import re
import threading
import warnings
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

from coordinator.tasks.adapter import Problem, Score
from coordinator.tasks.wording import fixed_pieces, other_characters
from rollcast.runtime.errors import MissingExtra, TaskError

LINE_BYTES_MAX = 1 << 20  # a longer line is not a prompt for these models
# math-verify interrupts itself with an alarm signal, which only a process's main thread can take.
MATH_TIMEOUT_S = 3
MATH_SIGNS = frozenset("0123456789+-*/^=\\(){}<>")
_MARKED = re.compile(r"\$|\\boxed|\\\(|\\\[")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")


class Jsonl:
    """Problems from a file, held in memory.

    Raises:
        TaskError: the file cannot be read or a line is wrong; the message names file and line.
    """

    name = "jsonl"

    def __init__(self, path: Path) -> None:
        self._rows = _read_rows(path)
        self.problem_count: int | None = len(self._rows)
        self._gold = lru_cache(maxsize=1024)(parse_math)

    def wording(self) -> tuple[str, ...]:
        return fixed_pieces([prompt for prompt, _ in self._rows])

    def characters(self) -> str:
        return other_characters(self.wording(), [text for row in self._rows for text in row])

    def problem(self, index: int) -> Problem:
        prompt, answer = self._rows[index % len(self._rows)]
        return Problem(f"{self.name}:{index % len(self._rows)}", prompt, answer, {})

    def verify(self, problem: Problem, completion_text: str) -> Score:
        """1 if the completion is the answer, or equal to it as mathematics; else 0.

        Raises:
            MissingExtra: math-verify is not installed.
        """
        text = completion_text.strip()
        if text == problem.answer.strip():
            return Score(1.0, True)
        gold = self._gold(problem.answer)
        right = bool(gold) and same_math(gold, parse_math(text))
        return Score(1.0, True) if right else Score(0.0, False)

    def demonstration(self, problem: Problem, *, flawed: bool, random: Random) -> str | None:
        return problem.answer


def parse_math(text: str) -> list[Any]:
    """What math-verify reads in a text; empty for plain words, which only compare as text."""
    library, timeout_s = _library(), _timeout_s()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: list[Any] = []
        # math-verify looks for marked formulas and takes "2x+1" for the number 1, so a bare formula gets its marks.
        # Bare words must not, or "Paris" would equal "Pairs" as a product of letters.
        if MATH_SIGNS.intersection(text) and not _MARKED.search(text) and not _WORD.search(text):
            found = library.parse(f"${text}$", parsing_timeout=timeout_s)
        return found or list(library.parse(text, parsing_timeout=timeout_s))


def same_math(gold: list[Any], other: list[Any]) -> bool:
    """Whether two results of parse_math are equal."""
    library, timeout_s = _library(), _timeout_s()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bool(library.verify(gold, other, timeout_seconds=timeout_s))


def _timeout_s() -> int | None:
    return MATH_TIMEOUT_S if threading.current_thread() is threading.main_thread() else None


@lru_cache(maxsize=1)
def _library() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library = importlib.import_module("math_verify")
    except ImportError as error:
        raise MissingExtra(
            "the task needs the package math-verify", cause=str(error), fix="pip install 'rollcast[coordinator]'"
        ) from None
    # They log every text that is not mathematics, which completions often are not.
    for name in ("math_verify", "latex2sympy2_extended"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return library


def _read_rows(path: Path) -> list[tuple[str, str]]:
    try:
        with path.open("rb") as file:
            rows = [_row(path, number, line) for number, line in enumerate(file, start=1) if line.strip()]
    except OSError as error:
        raise TaskError(f"cannot read the task file {path}", cause=str(error), fix="correct task.path") from None
    if not rows:
        raise TaskError(f"the task file {path} has no problems", fix='add lines of {"prompt": ..., "answer": ...}')
    return rows


def _row(path: Path, number: int, line: bytes) -> tuple[str, str]:
    where = f"{path}, line {number}"
    fix = 'write one {"prompt": "...", "answer": "..."} a line'
    if len(line) > LINE_BYTES_MAX:
        raise TaskError(f"{where}: the line is too long", cause=f"it has {len(line)} bytes", fix=fix)
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{where}: not JSON", cause=str(error), fix=fix) from None
    if not isinstance(value, dict):
        raise TaskError(f"{where}: not an object", fix=fix)
    prompt, answer = value.get("prompt"), value.get("answer")
    if isinstance(answer, int | float) and not isinstance(answer, bool):
        answer = json.dumps(answer)
    for name, text in (("prompt", prompt), ("answer", answer)):
        if not isinstance(text, str) or not text.strip() or _has_surrogates(text):
            raise TaskError(f"{where}: {name!r} is missing or not a text", fix=fix)
    return str(prompt), str(answer)


def _has_surrogates(text: str) -> bool:
    """JSON can hold halves of characters, which no file, hash or message of ours can."""
    return any("\ud800" <= character <= "\udfff" for character in text)
