"""JSON that browsers read."""

from __future__ import annotations

import json
from collections import deque
from types import MappingProxyType

from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.runtime import finite_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
)


def _refuse(constant: str) -> None:
    raise AssertionError(constant)


@settings(deadline=None, max_examples=100)
@given(VALUES)
def test_no_reader_meets_a_number_that_is_none(value: object) -> None:
    text = finite_json.dumps(value)
    assert "\n" not in text
    assert json.loads(text, parse_constant=_refuse) == finite_json.finite(value)


def test_whatever_is_in_it() -> None:
    value = {"\ud800": 1 << 70, 2: ("x", MappingProxyType({"y": deque([float("inf")])}))}
    assert json.loads(finite_json.dumps({3: value["\ud800"]})) == {"3": 1 << 70}
    assert finite_json.dumps({"a": "\ud800"}) == '{"a":"\\ud800"}'
    assert json.loads(finite_json.dumps(value)) == {"\ud800": 1 << 70, "2": ["x", {"y": [None]}]}


def test_only_what_is_not_finite_is_replaced() -> None:
    assert finite_json.finite({"a": [1, 0.5, float("nan")], 2: ("x", float("-inf"))}) == {
        "a": [1, 0.5, None],
        "2": ["x", None],
    }
