"""Test the judge of tests and the server of a program, joined by pipes in this process."""

from __future__ import annotations

import json
import math
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.tasks.sandbox import judge, served
from coordinator.tasks.sandbox.values import decode, encode

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
        | st.sets(st.integers(), max_size=3)
    ),
    max_leaves=8,
)


def no_object(_: Any) -> Any:
    raise TypeError("not plain")


@given(PLAIN)
def test_plain_values_come_back_alike(value: Any) -> None:
    found = decode(json.loads(json.dumps(encode(value, no_object))), no_object)
    assert (found, type(found)) == (value, type(value))


def test_what_only_pretends_to_be_plain_is_an_object() -> None:
    class Yes(int):
        def __eq__(self, other: object) -> bool:
            return True

    with pytest.raises(TypeError):
        encode(Yes(3), no_object)
    assert encode([Yes(3)], lambda _: 7) == ["list", [["object", 7]]]
    assert math.isnan(decode(encode(math.nan, no_object), no_object))


@pytest.mark.parametrize("data", [["atom", [1]], ["int", "x"], ["other", 1], ["dict", [1]], 7, ["bytes", "zz"]])
def test_data_that_are_no_value_are_refused(data: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        decode(data, no_object)


class Direct(judge.Program):
    """A program whose server is called in this process, in place of the pipes."""

    def __init__(self, source: str) -> None:
        super().__init__(-1, None)
        self.server = served.Server(5.0)
        self.server.load(source)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        answer = json.loads(json.dumps(self.server.answer(request)))
        if "raised" in answer:
            raise judge._error_named(answer["raised"])
        return dict(answer)


def test_helpers_builtins_and_modules_are_those_of_the_judge() -> None:
    program = Direct("import math, os\nmath = math\nabs = near = half = lambda *_: 1\ncount = 3\n_x = 4")
    namespace, remote = judge.namespace_of(program, "def near(x, y): return x == y")
    assert (namespace["math"], namespace["near"](1, 2), "abs" in namespace) == (math, False, False)
    assert (namespace["count"], namespace["half"](2), remote) == (3, 1, {"half", "count", "_x"})


def test_a_test_passes_only_by_plain_values() -> None:
    program = Direct("class Yes:\n    __eq__ = __bool__ = lambda *_: True\nyes = lambda: Yes()\nfail = lambda: 1 / 0")
    namespace, remote = judge.namespace_of(program, "")

    def run(code: str, **test: Any) -> list[str]:
        fields = {"code": code, "expression": "", "wanted": "None", "root": "", "names": [], "sets": []}
        return judge.run_test(fields | test, namespace, program, remote)

    assert run("", expression="yes()", wanted="4", root="yes", names=["yes"]) == ["failed", "AssertionError"]
    assert run("assert yes() == 4") == ["failed", "AssertionError"]
    assert run("assert yes() < 4") == ["failed", "TypeError"]
    assert run("fail()") == ["failed", "ZeroDivisionError"]
    assert run("yes(lambda: 1)") == ["failed", "TypeError"]
    assert run("assert yes() == yes()") == ["passed"]
    assert run("yes = 4", sets=["yes"]) == ["passed"]
    assert "yes" not in remote


def test_answers_to_earlier_requests_are_discarded_and_an_end_is_noticed() -> None:
    (requests_out, requests_in), (answers_out, answers_in) = os.pipe(), os.pipe()
    with os.fdopen(answers_out) as answers:
        program = judge.Program(requests_in, answers)
        os.write(answers_in, b'{"id": 0, "value": ["int", "1"]}\n{"id": 1, "value": ["int", "2"]}\n')
        assert program.value(program.ask({"do": "global", "name": "x"})) == 2
        os.close(answers_in)
        with pytest.raises(EOFError):
            program.ask({"do": "names"})
    os.close(requests_in)
    os.close(requests_out)
