"""Test which sets `rollcast eval` evaluates."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.config.config import CoordinatorConfig
from rollcast.cli.run.evaluate import evaluate
from rollcast.runtime.errors import ConfigError
from rollcast.runtime.run_folder import RunFolder


def test_the_sets_of_the_run_are_named_where_another_is_wanted(tmp_path: Path) -> None:
    folder, data = RunFolder(tmp_path / "run").prepare(), tmp_path / "mine.jsonl"
    (folder.config / "coordinator.json").write_text(CoordinatorConfig().model_dump_json())
    with pytest.raises(ConfigError, match="has no evaluation set 'nope'") as caught:
        evaluate(folder.root, set_names=("held_out", "nope"), data=(f"mine={data}",))
    assert caught.value.cause == "it has held_out, mine"
