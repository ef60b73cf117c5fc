from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.runtime.errors import JoinRefused, RollcastError, WrongKey
from rollcast.wire.joining.error_json import error_from_json, error_to_json


@pytest.mark.parametrize("kind", [JoinRefused, WrongKey, RollcastError])
def test_errors_keep_their_class_and_words(kind: type[RollcastError]) -> None:
    error = error_from_json(error_to_json(kind("what", cause="cause", fix="fix")))
    assert type(error) is kind
    assert error is not None
    assert (error.what, error.cause, error.fix) == ("what", "cause", "fix")


def test_strangers_cannot_write_control_characters_or_novels() -> None:
    error = error_from_json(json.dumps({"code": "RC301", "what": "\x1b[2Jhello\n" + "x" * 10_000}))
    assert error is not None
    assert error.what.startswith(" [2Jhello x")
    assert len(error.what) == 1024
    assert len(error_to_json(JoinRefused("x" * 10_000))) < 1200


JSON_VALUES = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["code", "what", "cause", "fix"]), inner),
    max_leaves=6,
)


@given(JSON_VALUES.map(json.dumps) | st.text() | st.binary() | st.just("[" * 100_000))
@settings(deadline=None, max_examples=100)
def test_other_texts_are_no_error(text: str | bytes) -> None:
    assert error_from_json(text) is None
