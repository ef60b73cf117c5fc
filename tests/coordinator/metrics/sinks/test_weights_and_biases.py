"""Test the records for Weights & Biases; the package is replaced, because it starts a program of its own."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.metrics.sinks.weights_and_biases import WandbSink, require_wandb
from rollcast.runtime.errors import MissingExtra


class FakeRun:
    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.finished = False

    def log(self, values: dict[str, float], *, step: int) -> None:
        self.logged.append((step, values))

    def finish(self) -> None:
        self.finished = True


def test_run_resumes_under_its_id_without_names_of_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, asked = FakeRun(), dict[str, Any]()

    def init(**values: Any) -> FakeRun:
        asked.update(values)
        return run

    monkeypatch.setitem(
        sys.modules, "wandb", SimpleNamespace(init=init, Settings=dict, __spec__=SimpleNamespace(name="wandb"))
    )
    sink = WandbSink(tmp_path / "w", run_id="run-1", run_name="sums", project="p", entity="", mode="online")
    sink.write(3, {"loss": 0.5, "kl_k3:12D3KooW": 1.0})
    sink.close()
    assert (asked["id"], asked["resume"], asked["entity"], asked["mode"]) == ("run-1", "allow", None, "online")
    assert run.logged == [(3, {"loss": 0.5})]
    assert run.finished


def test_missing_package_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"\[wandb\]"):
        require_wandb()
