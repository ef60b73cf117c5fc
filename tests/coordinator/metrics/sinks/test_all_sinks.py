"""One step to all sinks, once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from coordinator.config.sinks import MetricsConfig
from coordinator.metrics.sinks.all_sinks import AllSinks, open_sinks
from coordinator.metrics.sinks.file import FileSink
from coordinator.metrics.sinks.tensorboard import FOLDER
from rollcast.runtime import metrics
from rollcast.runtime.errors import MissingExtra
from rollcast.runtime.run_folder import RunFolder


class Seen:
    name = "seen"

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.closed = False

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        self.steps.append(step)

    def close(self) -> None:
        self.closed = True


def test_a_step_that_is_reported_again_goes_nowhere(tmp_path: Path) -> None:
    seen = Seen()
    sinks = AllSinks(FileSink(tmp_path / "metrics.jsonl"), [seen])
    for step in (1, 2, 2, 1, 3):
        sinks.write(step, {"loss": 1.0})
    sinks.close()
    assert seen.steps == [1, 2, 3]
    assert seen.closed


def test_a_run_writes_its_file_shows_metrics_and_event_files(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    registry = metrics.new_registry()
    folder = RunFolder(tmp_path)
    sinks = open_sinks(MetricsConfig(sinks=("tensorboard",)), folder, registry, run_id="r", run_name="n")
    sinks.write(1, {"loss": 0.5})
    sinks.close()
    assert json.loads(folder.metrics.read_text()) == {"step": 1, "loss": 0.5}
    assert 'rollcast_step_figure{figure="loss"} 0.5' in metrics.render(registry).decode()
    assert list((tmp_path / FOLDER).glob("events.*"))


def test_a_sink_that_is_not_installed_is_said_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name in ("tensorboard", "wandb"):
        with pytest.raises(MissingExtra, match=name):
            open_sinks(
                MetricsConfig(sinks=(name,)), RunFolder(tmp_path), metrics.new_registry(), run_id="r", run_name="n"
            )
