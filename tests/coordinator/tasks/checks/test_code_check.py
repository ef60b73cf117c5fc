"""Test the check of programs: the forms of unit tests, and the runs in the sandbox."""

from __future__ import annotations

import json
from typing import Any

import pytest

from coordinator.config.tasks import CodeCheck
from coordinator.tasks.checks.code_check import CodeChecker, program_of, same_output
from coordinator.tasks.checks.code_tests import CodeTests, read_tests
from coordinator.tasks.checks.task import Problem

ADD = CodeTests(statements=("assert add(1, 2) == 3", "assert add([1], [2]) == [1, 2]", "assert add(2, 2) != 5"))

SUMS = CodeTests(pairs=(("1 2\n", "3\n"), ("4 5\n", "9\n")))


def reward(program: str, tests: CodeTests, **settings: Any) -> float:
    checker = CodeChecker(CodeCheck(total_timeout_s=20.0, **settings))
    return checker.check(Problem("a:0", "?", "", {"tests": tests.to_json()}), program).reward


def test_a_program_passes_all_tests_or_none() -> None:
    assert reward("def add(a, b):\n    print('noise')\n    return a + b", ADD) == 1.0
    assert reward("print(sum(map(int, input().split())))  ", SUMS) == 1.0
    assert reward("print(3)", SUMS) == 0.0
    assert reward("def add(a, b):\n    return 3", ADD) == 0.0


def test_partial_credit() -> None:
    assert reward("print(3)", SUMS, partial_credit=True) == 0.5
    assert reward("def add(a, b):\n    return 3", ADD, partial_credit=True) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    "program",
    [
        "import os\nos._exit(0)",
        "raise SystemExit(0)",
        "class Yes:\n    __eq__ = lambda *_: True\n    __ne__ = __eq__\ndef add(a, b):\n    return Yes()",
        "def add(a, b):\n    import os\n    os._exit(0)",
        'print(\'["passed", ""]\\n\' * 9)\ndef add(a, b):\n    return 0',
        "def add(:",
    ],
)
def test_cheating_programs_fail(program: str) -> None:
    assert reward(program, CodeTests(statements=ADD.statements[:2]), partial_credit=True) == 0.0


def test_a_test_that_hangs_costs_itself_only() -> None:
    program = "def add(a, b):\n    while a == 1: pass\n    return a + b"
    tests = CodeTests(statements=("assert add(1, 2) == 3", "assert add(2, 2) == 4", "assert add(0, 0) == None"))
    assert reward(program, tests, partial_credit=True, test_timeout_s=0.3) == pytest.approx(1 / 3)


def test_the_last_block_of_a_completion_is_its_program() -> None:
    text = "First\n```python\nx = 1\n```\nno, rather\n```py\nx = 2\n```\nDone."
    assert program_of(text) == "x = 2\n"
    assert program_of("x = 3") == "x = 3"
    assert program_of("```\nx = 4") == "x = 4"


def test_outputs_are_compared_line_by_line() -> None:
    assert same_output("1 \n2\n\n", "1\n2")
    assert not same_output("1\n\n2", "1\n2")
    assert not same_output(" 1", "1")


PAIRS = CodeTests(pairs=(("1 2", "3"), ("4 5", "9")))

STATEMENTS = CodeTests(statements=("assert f(1) == 2", "assert f(2) == 3"))


@pytest.mark.parametrize(
    ("value", "tests"),
    [
        ({"inputs": ["1 2", "4 5"], "outputs": ["3", "9"]}, PAIRS),
        ([{"input": "1 2", "output": "3"}, {"input": ["4 5"], "output": ["9"]}], PAIRS),
        (json.dumps({"inputs": ["1 2", "4 5"], "outputs": ["3", "9"]}), PAIRS),
        (["assert f(1) == 2", "", "assert f(2) == 3"], STATEMENTS),
        ("assert f(1) == 2\nassert f(2) == 3\n", STATEMENTS),
        ("assert f(\n    1\n) == 2", CodeTests(statements=("assert f(\n    1\n) == 2",))),
        ({"statements": ["assert x"], "setup": "import math"}, CodeTests(("assert x",), (), "import math")),
    ],
)
def test_forms(value: Any, tests: CodeTests) -> None:
    assert read_tests(value) == tests
    assert read_tests(tests.to_json()) == tests


@pytest.mark.parametrize(
    "value", [None, [], {}, "", 7, "[1", [1], {"inputs": ["1"], "outputs": []}, [{"input": 1, "output": "2"}]]
)
def test_malformed_tests_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_tests(value)
