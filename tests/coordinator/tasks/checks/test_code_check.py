"""Test the check of programs: the forms of unit tests, and the runs in the sandbox."""

from __future__ import annotations

import json
from typing import Any

import pytest

from coordinator.config.checks import CodeCheck
from coordinator.tasks.checks.code_check import CodeChecker, program_of, same_output
from coordinator.tasks.checks.code_tests import CodeTests, read_tests
from coordinator.tasks.checks.statements import read_statement
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


READS_ITS_CALLER = """
import json, os, sys
frame = sys._getframe()
while frame:
    order = frame.f_locals.get("order")
    if order:
        for number in range(3, 16):
            try:
                for _ in order["tests"]:
                    os.write(number, json.dumps(["passed", order.get("token", "")]).encode() + b"\\n")
            except OSError:
                pass
        os._exit(0)
    frame = frame.f_back
"""
WRITES_EVERYWHERE = """
import os
for number in range(64):
    try:
        os.write(number, b'["passed"]\\n["passed"]\\n')
    except OSError:
        pass
"""
SWAPS_THE_HELPERS = """
import math, builtins
math.isclose = lambda *a, **k: True
builtins.abs = lambda x: 0
def abs(x): return 0
def near(x, y): return True
def half(x): return None
"""
PRETENDS = """
class Yes(float):
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = lambda *_: True
    __sub__ = __rsub__ = __abs__ = lambda *_: Yes()
half = lambda x: Yes()
"""
NOT_LITERAL = CodeTests(
    ("assert math.isclose(half(3), 1.5)", "assert abs(half(5) - 2.5) < 0.1", "assert near(half(7), 3.5) == True"),
    setup="import math\ndef near(x, y): return x == y",
)


@pytest.mark.parametrize("program", [READS_ITS_CALLER, WRITES_EVERYWHERE, SWAPS_THE_HELPERS, PRETENDS])
def test_no_program_decides_tests_that_are_no_comparison_with_a_literal(program: str) -> None:
    assert reward(program, NOT_LITERAL, partial_credit=True) == 0.0


def test_a_right_program_passes_them() -> None:
    assert reward("def half(x): return x / 2", NOT_LITERAL) == 1.0


WHOLE = """
import math
class Full(Exception): pass
class Stack:
    def __init__(self, most): self.items, self.most = [], most
    def push(self, x):
        if len(self.items) == self.most: raise ValueError("full")
        self.items.append(x)
        return self
    def __len__(self): return len(self.items)
    def __eq__(self, other): return self.items == other.items
def sort_in_place(items): items.sort()
def twice(f, x): return f(f(x))
def area(r): return math.pi * r * r
"""


def test_objects_helpers_and_changes_in_place_are_judged_from_outside() -> None:
    tests = CodeTests(
        (
            "s = Stack(2)\ns.push(1).push(2)\nassert len(s) == 2 and s.items[0] == 1",
            "try:\n    s.push(3)\n    assert False\nexcept ValueError:\n    pass",
            "assert s == Stack(2).push(1).push(2)",
            "items = [3, 1, 2]\nsort_in_place(items)\nassert items == [1, 2, 3]",
            "assert twice(lambda x: x + 1, 3) == 5",
            "assert math.isclose(area(1), 3.14159265, rel_tol=1e-6)",
            "def check(f):\n    for n in range(3):\n        assert f(n) == math.pi * n * n\ncheck(area)",
            "assert area(2) != 3",
            "assert Stack(1) == 7",
        )
    )
    assert reward(WHOLE, tests, partial_credit=True) == pytest.approx(8 / 9)


def test_only_values_of_the_program_itself_are_asked_for() -> None:
    asked = ("f(2) == 3", "f(2)[0].real == 3", "f(lambda n: n + k) == 3")
    assert all(read_statement(f"assert {one}").asks_the_program("") for one in asked)
    verdicts = ("math.isclose(f(2), 3) == True", "len(f(2)) == 3", "f(2) + 1 == 3", "near(f(2)) == True", "f(2) == x")
    assert not any(read_statement(f"assert {one}").asks_the_program("def near(x): pass") for one in verdicts)
    found = read_statement("assert f(lambda n: n + k, [i for i in x]) == 3")
    assert (found.root, found.names, found.wanted) == ("f", {"f", "k", "x"}, 3)
    assert read_statement("import a.b as c\nx = 1\ndef g(): pass").sets == {"c", "x", "g"}
    assert read_statement("assert f(").code == "assert f("


def test_a_test_that_hangs_costs_itself_only() -> None:
    program = "def add(a, b):\n    while a == 1: pass\n    return a + b"
    tests = CodeTests(statements=("assert add(1, 2) == 3", "assert add(2, 2) == 4", "assert add(0, 0) == None"))
    assert reward(program, tests, partial_credit=True, test_timeout_s=0.3) == pytest.approx(1 / 3)
    judged = CodeTests(statements=("assert add(1, 2) > 2", "assert add(2, 2) > 3", "assert add(0, 0) > 0"))
    assert reward(program, judged, partial_credit=True, test_timeout_s=0.3) == pytest.approx(1 / 3)


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
