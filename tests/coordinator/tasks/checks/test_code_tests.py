from __future__ import annotations

import json
from typing import Any

import pytest

from coordinator.tasks.checks.code_tests import CodeTests, read_tests

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
def test_what_is_no_test(value: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_tests(value)
