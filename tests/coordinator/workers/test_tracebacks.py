"""Test that a traceback begins where the user's code does."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.workers.plugins import load_plugin
from coordinator.workers.tracebacks import users_traceback
from rollcast.runtime.errors import TaskError


def test_frames_before_the_users_file_are_left_out(tmp_path: Path) -> None:
    """The package itself calls the function here, as a verifier does."""
    file = tmp_path / "reward.py"
    file.write_text("def score():\n    return inner()\n\n\ndef inner():\n    return 1 / 0\n")
    with pytest.raises(TaskError):
        load_plugin(f"{tmp_path / 'missing.py'}:score", "rollcast.rewards")
    score = load_plugin(f"{file}:score", "rollcast.rewards")
    with pytest.raises(ZeroDivisionError) as caught:
        score()
    shown = users_traceback(caught.value)
    assert "return inner()" in shown
    assert "return 1 / 0" in shown


def test_an_error_of_our_own_keeps_its_frames() -> None:
    with pytest.raises(TaskError) as caught:
        load_plugin("nothing.py:score", "rollcast.rewards")
    error = caught.value
    assert error.__traceback__ is not None
    error.__traceback__ = error.__traceback__.tb_next  # without the frame of this test
    assert "coordinator/workers/plugins.py" in users_traceback(error)


def test_a_file_that_cannot_be_parsed_is_shown_with_its_line_alone(tmp_path: Path) -> None:
    file = tmp_path / "unparsed_reward.py"
    file.write_text("def score(completion)\n    return 1.0\n")
    with pytest.raises(TaskError) as caught:
        load_plugin(f"{file}:score", "rollcast.rewards")
    assert caught.value.cause.startswith(f'File "{file}", line 1')
    assert caught.value.cause.endswith("SyntaxError: expected ':'")
    assert caught.value.fix == f"correct {file} where the cause says"


def test_a_file_that_cannot_be_imported_is_shown_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "broken_reward.py"
    file.write_text("LIMIT = 3\nWEIGHT = LIMITS / 2\n")
    with pytest.raises(TaskError) as caught:
        load_plugin(f"{file}:score", "rollcast.rewards")
    assert "broken_reward.py" in str(caught.value.cause)
    assert "line 2" in str(caught.value.cause)
    assert "plugins.py" not in str(caught.value.cause)
    assert "importlib" not in str(caught.value.cause)
