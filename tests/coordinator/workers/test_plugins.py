from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from coordinator.workers import plugins
from coordinator.workers.plugins import load_plugin
from rollcast.runtime.errors import TaskError


def test_an_object_of_a_file_with_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_a_plugin.py").write_text("FACTOR = 2\n")
    text = "from neighbour_of_a_plugin import FACTOR\n\n\ndef double(n):\n    return FACTOR * n\n"
    (tmp_path / "a_plugin.py").write_text(text)
    assert load_plugin(f"{tmp_path}/a_plugin.py:double", "no.group")(3) == 6


@pytest.mark.parametrize("text", ["import no_such_module", "raise SystemExit(3)", "1 +"])
def test_a_file_that_cannot_be_imported_is_explained(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad_plugin.py").write_text(text)
    with pytest.raises(TaskError, match="cannot be loaded") as error:
        load_plugin(f"{tmp_path}/bad_plugin.py:anything", "no.group")
    assert error.value.cause


def test_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    point = importlib.metadata.EntryPoint("adder", "operator:add", "rollcast.rewards")
    monkeypatch.setattr(plugins.importlib.metadata, "entry_points", lambda group: [point])
    assert load_plugin("adder", "rollcast.rewards")(1, 2) == 3
    with pytest.raises(TaskError, match="no installed package offers 'multiplier'") as error:
        load_plugin("multiplier", "rollcast.rewards")
    assert "adder" in error.value.cause
