"""Check programs by their unit tests, in a sandbox.

If a test compares with a literal (`assert f(2) == 4`), the expected result never enters the sandbox: the program's
value comes out and is compared here, so that no program passes by ending early, by overloading `==`, or by reading the
answer.
"""

from __future__ import annotations

import ast
import json
import re
import secrets
import time
from pathlib import Path

import structlog

from coordinator.config.tasks import CodeCheck
from coordinator.tasks.checks.code_tests import CodeTests, read_tests
from coordinator.tasks.checks.task import Problem, Score
from coordinator.tasks.sandbox import harness
from coordinator.tasks.sandbox.runner import Limits, ProgramResult, run_python
from rollcast.runtime.errors import TaskError

PROGRAM_LENGTH_MAX = 256 << 10
VALUE_LENGTH_MAX = 64 << 10  # characters of a result as text
_FENCED = re.compile(r"```[ \t]*(?:[Pp]ython3?|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)

log = structlog.get_logger()


class CodeChecker:
    """Accepts programs that pass every test, or with partial_credit scores the share of tests passed."""

    starts_processes = True

    def __init__(self, config: CodeCheck) -> None:
        self._config = config

    def warm_up(self) -> None:
        """Check that this machine can confine programs; log what is missing with isolation "best".

        Raises:
            TaskError: it cannot, and isolation is "full".
        """
        ended = run_python({"main.py": ""}, "main.py", b"", self._limits(30.0))
        if ended.outcome != "exited" or ended.status:
            raise TaskError(
                "the sandbox cannot run an empty program",
                cause=ended.stderr.decode(errors="replace")[-500:] or f"{ended.outcome}, status {ended.status}",
                fix="make the interpreter readable for every user, or raise task.check.memory_bytes",
            )
        if ended.missing:
            log.warning("programs are confined less than they could be", missing=dict(ended.missing))

    def check(self, problem: Problem, completion_text: str) -> Score:
        tests = read_tests(problem.data["tests"])
        program = program_of(completion_text)
        if len(program) > PROGRAM_LENGTH_MAX:
            return Score(0.0, False, "the program is too long")
        ends_s = time.monotonic() + self._config.total_timeout_s
        if tests.statements:
            passed = self._run_statements(program, tests, ends_s)
        else:
            passed = self._run_pairs(program, tests, ends_s)
        count = min(tests.count, self._config.tests_max)
        if passed == count:
            return Score(1.0, True)
        share = passed / count if self._config.partial_credit else 0.0
        return Score(share, False, f"{passed} of {count} tests passed")

    def _run_pairs(self, program: str, tests: CodeTests, ends_s: float) -> int:
        """Return how many inputs give the right output; without partial credit the first wrong one ends the check."""
        files, passed = {"main.py": f"{tests.setup}\n{program}"}, 0
        for given, wanted in tests.pairs[: self._config.tests_max]:
            left_s = ends_s - time.monotonic()
            if left_s <= 0.0:
                break
            limits = self._limits(min(left_s, self._config.test_timeout_s))
            ended = run_python(files, "main.py", given.encode(errors="replace"), limits)
            if (
                ended.outcome == "exited"
                and not ended.status
                and same_output(ended.stdout.decode(errors="replace"), wanted)
            ):
                passed += 1
            elif not self._config.partial_credit:
                break
        return passed

    def _run_statements(self, program: str, tests: CodeTests, ends_s: float) -> int:
        statements = tests.statements[: self._config.tests_max]
        expected = [_comparison(statement) for statement in statements]
        token = secrets.token_hex(16)
        order = {
            "token": token,
            "timeout_s": self._config.test_timeout_s,
            "tests": [
                ["run", statement] if found is None else ["value", found[0]]
                for statement, found in zip(statements, expected, strict=True)
            ],
        }
        files = {"candidate.py": f"{tests.setup}\n{program}", "main.py": Path(harness.__file__).read_text()}
        limits = self._limits(max(0.05, ends_s - time.monotonic()))
        ended = run_python(files, "main.py", json.dumps(order).encode(), limits)
        answers = _answers(ended)
        return sum(_passes(answer, token, found) for answer, found in zip(answers, expected, strict=False))

    def _limits(self, wall_s: float) -> Limits:
        config = self._config
        return Limits(
            wall_s,
            config.memory_bytes,
            config.processes_max,
            config.output_bytes_max,
            config.file_bytes_max,
            full=config.isolation == "full",
        )


def program_of(completion: str) -> str:
    """Return the last fenced block of a completion; the whole text if it has none."""
    blocks = _FENCED.findall(completion)
    return str(blocks[-1]) if blocks else completion


def same_output(given: str, wanted: str) -> bool:
    """Decide whether outputs are equal apart from white space at line ends and empty lines at the end."""
    return [line.rstrip() for line in given.rstrip().splitlines()] == [
        line.rstrip() for line in wanted.rstrip().splitlines()
    ]


def _comparison(statement: str) -> tuple[str, object] | None:
    """Return (expression, literal) of `assert expression == literal`; None for every other statement."""
    try:
        body = ast.parse(statement.strip()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    match body:
        case [ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]))]:
            try:
                return ast.unparse(left), ast.literal_eval(right)
            except (ValueError, RecursionError):
                return None
    return None


def _answers(ended: ProgramResult) -> list[list[str]]:
    answers: list[list[str]] = []
    for line in ended.stdout.splitlines():
        try:
            kind, value = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            break
        answers.append([str(kind), str(value)])
    return answers


def _passes(answer: list[str], token: str, comparison: tuple[str, object] | None) -> bool:
    kind, value = answer
    if comparison is None:
        return kind == "passed" and secrets.compare_digest(value, token)
    if kind != "value" or len(value) > VALUE_LENGTH_MAX:
        return False
    try:
        return bool(ast.literal_eval(value) == comparison[1])
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return False
