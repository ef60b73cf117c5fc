from __future__ import annotations

import pytest

from coordinator.config.tasks import FieldsConfig
from coordinator.tasks.checks.code_tests import CodeTests
from coordinator.tasks.fields import BadRow, Row, row_of


def test_numbers_are_answers() -> None:
    fields = FieldsConfig()
    assert row_of({"prompt": "1+1?", "answer": 2, "source": "school"}, fields, "here") == Row("1+1?", "2")
    assert row_of({"prompt": "1/4?", "answer": 0.25}, fields, "here").answer == "0.25"


def test_what_json_cannot_hold_is_kept_as_text() -> None:
    row = row_of({"prompt": "a", "answer": "b", "at": 1j}, FieldsConfig(metadata=["at"]), "here")
    assert row.metadata == {"at": "1j"}


def test_tests_may_stand_for_an_answer() -> None:
    fields = FieldsConfig(answer="", tests="tests")
    row = row_of({"prompt": "a", "tests": '{"inputs": ["1"], "outputs": ["2"]}'}, fields, "here")
    assert row == Row("a", "", CodeTests(pairs=(("1", "2"),)))
    with pytest.raises(BadRow, match="here: 'tests' has no tests that can be run"):
        row_of({"prompt": "a", "tests": []}, fields, "here")
