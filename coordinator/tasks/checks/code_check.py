"""Check programs by their unit tests, in a sandbox.

No program decides its own tests. If every test compares a call of it with a literal (`assert f(2) == 4`), its values
come out of the sandbox and are compared here. Other tests run in a second sandbox, whose calls of the program go to the
first one (sandbox/judge.py). So no program passes by ending early, by overloading `==`, or by reading what is wanted.
"""

from __future__ import annotations

import ast
import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coordinator.config.checks import CodeCheck
from coordinator.tasks.checks.checker import Checker
from coordinator.tasks.checks.code_tests import CodeTests, read_tests
from coordinator.tasks.checks.statements import Statement, read_statement
from coordinator.tasks.checks.task import Problem, Score
from coordinator.tasks.sandbox.runner import Limits, run_pair, run_python
from rollcast.runtime.errors import TaskError

PROGRAM_LENGTH_MAX = 256 << 10
VALUE_LENGTH_MAX = 64 << 10  # characters of a result as text
SANDBOX = Path(__file__).parents[1] / "sandbox"
_FENCED = re.compile(r"```[ \t]*(?:[Pp]ython3?|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)


class CodeChecker(Checker):
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
            import structlog  # loaded here, because every verifier process would load it, and what it imports

            structlog.get_logger().warning("programs are confined less than they could be", missing=dict(ended.missing))

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
        statements = [read_statement(code) for code in tests.statements[: self._config.tests_max]]
        limits = self._limits(max(0.05, ends_s - time.monotonic()))
        source = f"{tests.setup}\n{program}"
        if not all(one.asks_the_program(tests.setup) for one in statements):
            return self._judge(source, tests.setup, statements, limits)
        order = {"timeout_s": self._config.test_timeout_s, "expressions": [one.expression for one in statements]}
        files = {"candidate.py": source, "main.py": _text("harness")}
        answers = _answers(run_python(files, "main.py", json.dumps(order).encode(), limits).stdout)
        return sum(_passes(answer, one.wanted) for answer, one in zip(answers, statements, strict=False))

    def _judge(self, source: str, setup: str, statements: Sequence[Statement], limits: Limits) -> int:
        """Return how many statements pass in a sandbox of their own, where the program cannot reach them."""
        timeout_s = self._config.test_timeout_s
        order = {"setup": setup, "timeout_s": timeout_s, "tests": [_fields(one, setup) for one in statements]}
        theirs = {"candidate.py": source, "timeout_s": str(timeout_s), "main.py": _text("served")}
        ours = {"order.json": json.dumps(order), "main.py": _text("judge")}
        shared = {"values.py": _text("values")}
        ended = run_pair(ours | shared, theirs | shared, limits)
        return sum(answer[0] == "passed" for answer in _answers(ended.stderr))

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


def _fields(one: Statement, setup: str) -> dict[str, Any]:
    """Return a statement as the judge reads it; only a value of the program itself may be asked for as a whole."""
    return {
        "code": one.code,
        "expression": one.expression,
        "wanted": repr(one.wanted),
        "root": one.root if one.asks_the_program(setup) else "",
        "names": sorted(one.names),
        "sets": sorted(one.sets),
    }


def _text(module: str) -> str:
    return (SANDBOX / f"{module}.py").read_text(encoding="utf-8")


def _answers(output: bytes) -> list[list[str]]:
    """Return the lines of a harness or judge; what follows a line that is none does not count."""
    answers: list[list[str]] = []
    for line in output.splitlines():
        try:
            kind, *rest = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            break
        answers.append([str(kind), *map(str, rest)])
    return answers


def _passes(answer: list[str], wanted: object) -> bool:
    if len(answer) != 2 or answer[0] != "value" or len(answer[1]) > VALUE_LENGTH_MAX:
        return False
    try:
        return bool(ast.literal_eval(answer[1]) == wanted)
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return False
